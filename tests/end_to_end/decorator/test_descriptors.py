"""Kernels that take tensor descriptors, whose block shapes the configurations' hooks set."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[gpu]'")
triton = pytest.importorskip("triton", reason="needs triton: pip install '.[gpu]'")

import triton.language as tl
from replay_driver import ReplayDriver
from triton.tools.tensor_descriptor import TensorDescriptor
from tuned_kernels import NEWEST

import foretune
from foretune.tune.triton.call_plan import make_plan
from foretune.tune.triton.kernel import arguments_after_hook

SIZES = ((64, 64), (128, 64), (64, 128), (128, 128), (32, 64), (32, 32))


def add_one(a, b, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m = tl.program_id(0) * BLOCK_M
    n = tl.program_id(1) * BLOCK_N
    b.store([m, n], a.load([m, n]) + 1.0)


def set_blocks(arguments):
    for name in ("a", "b"):
        arguments[name].block_shape = [arguments["BLOCK_M"], arguments["BLOCK_N"]]


def configs():
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=4, pre_hook=set_blocks)
        for m, n in SIZES
    ]


def grid(arguments):
    return (
        triton.cdiv(arguments["M"], arguments["BLOCK_M"]),
        triton.cdiv(arguments["N"], arguments["BLOCK_N"]),
    )


@pytest.fixture
def described():
    def make(dtype=torch.float16):
        tensors = torch.ones(256, 256, dtype=dtype), torch.zeros(256, 256, dtype=dtype)
        return [TensorDescriptor.from_tensor(t, [1, 16]) for t in tensors]

    return make


def times(launch):
    """Return a time under which the largest tile is best; check what the launch was given."""
    tile = [launch.config["BLOCK_M"], launch.config["BLOCK_N"]]
    assert launch.arguments["a"].block_shape == tile
    return 1e4 / (tile[0] * tile[1])


@pytest.fixture
def driver():
    """Let kernels be compiled for an H200, and launched on a device that only replays."""
    with ReplayDriver(times, device="NVIDIA H200", compile=True).active() as active:
        yield active


def test_descriptors_compile_as_often_as_with_triton(driver, described):
    stock = triton.autotune(configs(), key=["M", "N"])(triton.jit(add_one))
    stock[grid](*described(), 256, 256)
    assert len(driver.compilations) == len(SIZES)
    kernel = foretune.autotune(configs(), key=["M", "N"], budget="all", store=False)(
        triton.jit(add_one)
    )
    kernel[grid](*described(), 256, 256)
    assert len(driver.compilations) == 2 * len(SIZES)
    assert kernel.best_config.all_kwargs() == stock.best_config.all_kwargs()
    assert kernel.best_config.kwargs == {"BLOCK_M": 128, "BLOCK_N": 128}


def test_descriptors_of_the_caller_get_the_blocks_of_the_winner(driver, described):
    given = described()
    kernel = foretune.autotune(configs(), key=["M", "N"], budget=3, store=False)(
        triton.jit(add_one)
    )
    kernel[grid](*given, 256, 256)
    assert len(driver.launches) <= 4
    best = kernel.best_config.kwargs
    assert given[0].block_shape == [best["BLOCK_M"], best["BLOCK_N"]]


def test_arguments_after_hook_are_copies(described):
    given = described()
    config = configs()[0]
    args, kwargs = arguments_after_hook(
        config, ["a", "b"], given[:1], {"b": given[1], "grid": (1,)}
    )
    assert args[0].block_shape == kwargs["b"].block_shape == [64, 64]
    assert given[0].block_shape == given[1].block_shape == [1, 16]
    assert args[0].base is given[0].base
    plain = triton.Config({"BLOCK_M": 1})
    assert arguments_after_hook(plain, ["a", "b"], given, {})[0][0] is given[0]


def test_arguments_after_hook_leaves_memory_unchanged(described):
    given = described()
    other = torch.ones(4)

    def clear(arguments):
        arguments["x"].zero_()

    config = triton.Config({"BLOCK_M": 1}, pre_hook=clear)
    with pytest.raises(AttributeError):
        arguments_after_hook(config, ["a", "x"], [given[0], other], {})
    assert (other == 1).all()


def test_descriptors_of_other_types_are_other_problems(described):
    half = described()
    single = described(torch.float32)
    plan = make_plan(["a", "b"], [], {}, tuple(half), {})
    assert plan.problem_key(tuple(half), {}) != plan.problem_key(tuple(single), {})
    kernel = foretune.autotune(configs(), key=["M", "N"], store=False)(triton.jit(add_one))
    with ReplayDriver(times, compile=False).active():
        kernel[grid](*half, 256, 256)
        kernel[grid](*single, 256, 256)
    decisions = [at for p in kernel._plans for at in p.entries]
    assert len(decisions) == 2


@pytest.mark.parametrize("which", ["reset_to_zero", "restore_value"])
def test_descriptors_tensors_are_reset_and_restored(described, which):
    given = described()
    before = []

    def spoil(launch):
        before.append(float(launch.arguments["b"].base.sum()))
        launch.arguments["b"].base.fill_(7.0)
        return times(launch)

    with ReplayDriver(spoil).active():
        kernel = foretune.autotune(
            configs(), key=["M", "N"], budget="all", store=False, **{which: ["b"]}
        )(triton.jit(add_one))
        kernel[grid](*given, 256, 256)
    assert set(before) == {0.0}


@pytest.mark.skipif(
    not NEWEST, reason="older interpreters do not work with this NumPy: pip install triton>=3.9"
)
def test_descriptors_in_the_interpreter(described, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    given = described(torch.float32)
    kernel = foretune.autotune(configs(), key=["M", "N"], budget=2, store=False, check=1e-3)(
        triton.jit(add_one)
    )
    kernel[grid](*given, 256, 256)
    assert (given[1].base == 2).all()
