"""Comparison of outputs: `tune/triton/output_check.py`."""

import math
import sqlite3
from contextlib import closing

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[gpu]'")
triton = pytest.importorskip("triton", reason="needs triton: pip install '.[gpu]'")

import foretune
from foretune.errors import ForetuneWarning, UsageError
from foretune.tune.triton import output_check
from foretune.tune.triton.output_check import ComparisonError, OutputChecker

FIRST = triton.Config({"BLOCK": 1})
SECOND = triton.Config({"BLOCK": 2})


def checker(work, **arguments):
    """Return a checker of two configurations; ``work(BLOCK)`` does what a launch would."""
    return voted(work, arguments, (1, 2))


def voted(work, arguments, blocks, reference=None):
    """Return a checker of configurations with these block sizes."""
    listed = [triton.Config({"BLOCK": block}) for block in blocks]
    return OutputChecker(
        lambda config: work(config.kwargs["BLOCK"]), arguments, listed, 1e-3, reference
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.float8_e4m3fn])
def test_error_is_relative_for_every_type(dtype):
    y = torch.ones(8).to(dtype)

    def work(block):
        y.copy_(torch.full((8,), 2.0 * block).to(dtype))

    check = checker(work, y=y, n=8)
    assert check.error(FIRST) == 0
    assert check.error(SECOND) == 1
    assert (y.double() == 1).all()  # restored


def test_error_of_pieces_is_the_error_of_the_whole(monkeypatch):
    y = torch.zeros(7, 5, 3)[:, ::2]  # of no contiguous memory
    other = torch.randn(7, 3, 3)

    def work(block):
        y.copy_(other * block)

    whole = checker(work, y=y).error(SECOND)
    monkeypatch.setattr(output_check, "PIECE", 4)
    assert checker(work, y=y).error(SECOND) == pytest.approx(whole)
    assert 0.5 < whole <= 1


def test_error_a_large_value_hides_no_other():
    y = torch.zeros(100)

    def work(block):
        y.fill_(2.0 if block == 1 else 0.0)
        y[0] = 1e5

    assert checker(work, y=y).error(SECOND) > 0.5


def test_error_finds_and_restores_an_overwritten_input():
    x = torch.ones(4)
    y = torch.zeros(4)

    def work(block):
        y.fill_(1.0)
        if block == 2:
            x[0] = 3.0

    check = checker(work, x=x, y=y)
    assert check.error(SECOND) == 1
    assert (x == 1).all()
    assert check.error(FIRST) == 0


def test_error_restores_after_a_failed_launch():
    y = torch.zeros(4)

    def work(block):
        y.fill_(block)
        if block == 2:
            raise RuntimeError("launch failed")

    check = checker(work, y=y)
    with pytest.raises(RuntimeError, match="launch failed"):
        check.error(SECOND)
    assert (y == 0).all()


def test_error_nan_equals_only_nan():
    y = torch.zeros(4)

    def work(block):
        y.fill_(math.nan)
        y[:block] = 1.0

    assert checker(work, y=y).error(FIRST) == 0
    assert checker(work, y=y).error(SECOND) == math.inf


def test_error_compares_tensors_behind_descriptors():
    from triton.tools.tensor_descriptor import TensorDescriptor

    y = torch.zeros(16, 16)
    described = TensorDescriptor.from_tensor(y, [16, 16])
    check = checker(lambda block: y.fill_(block), out=described)
    assert check.error(SECOND) == 1
    seen = triton.reinterpret(y, triton.language.int32)
    assert checker(lambda block: y.fill_(block), out=(seen,)).error(SECOND) == 1


def test_checker_unreadable_argument_is_an_error():
    class Pointer:
        def data_ptr(self):
            return 1024

    with pytest.raises(ComparisonError, match="out is a Pointer, which cannot be read"):
        checker(lambda block: None, out=Pointer())


def test_checker_copies_are_in_host_memory(monkeypatch):
    y = torch.zeros(16)
    check = checker(lambda block: y.fill_(block), y=y)
    assert all(t.device.type == "cpu" for t in (*check._before, *check._expected))

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")

    monkeypatch.setattr(output_check, "_pieces", full)
    with pytest.raises(ComparisonError, match="out of memory"):
        check.restore_arguments()


def test_check_without_memory_keeps_the_first(driver, tensors, monkeypatch):
    from tuned_kernels import configs, copy

    kernel = foretune.autotune(configs(64, 128, 256), ["n"], budget="all", store=False, check=1e-3)(
        triton.jit(copy)
    )

    def full(tensor):
        raise ComparisonError("no memory")

    monkeypatch.setattr(output_check, "_copy", full)
    with pytest.warns(ForetuneWarning, match="keeps to configurations .* or the first: no memory"):
        kernel[(1,)](*tensors, 1024)
    assert kernel.best_config.kwargs["BLOCK"] == 64  # 256 is the fastest


def test_check_finds_and_restores_arguments_read_and_changed(driver, tensors):
    from tuned_kernels import configs, copy

    def adds(launch):
        launch.arguments["y"].add_(launch.arguments["x"])
        return 1.0 if launch.config["BLOCK"] == 256 else 4.0

    driver.times = adds
    kernel = foretune.autotune(configs(64, 256), ["n"], budget="all", store=False, check=1e-3)(
        triton.jit(copy)
    )
    with pytest.warns(ForetuneWarning, match="copy reads and changes y, .* restore_value"):
        kernel[(1,)](*tensors, 1024)
    assert kernel.best_config.kwargs["BLOCK"] == 256
    assert tensors[1].tolist() == [1.0] * 64  # as if it had been called once


def test_check_compares_before_triton_restores(driver, tensors):
    from tuned_kernels import configs, copy

    def adds(launch):
        right = launch.config["BLOCK"] == 64
        launch.arguments["y"].add_(launch.arguments["x"] * (1 if right else 3))
        return 4.0 if right else 1.0

    driver.times = adds
    kernel = foretune.autotune(
        configs(64, 256), ["n"], budget="all", store=False, check=1e-3, restore_value=["y"]
    )(triton.jit(copy))
    kernel[(1,)](*tensors, 1024)
    assert kernel.best_config.kwargs["BLOCK"] == 64
    assert tensors[1].tolist() == [1.0] * 64


def test_checker_changed_omits_arguments_only_written():
    y = torch.zeros(8)
    counts = torch.ones(8)
    assert checker(lambda block: y.fill_(2), y=y).changed == []
    assert checker(lambda block: counts.mul_(2), y=y, counts=counts).changed == ["counts"]


@pytest.mark.parametrize(
    ("values", "right"),
    [
        ({1: 2.0, 2: 1.0, 4: 1.0}, 1.0),  # the first is the wrong one
        ({1: 2.0, 2: 1.0, 4: 3.0}, 2.0),  # none agree: the first counts
        ({1: 2.0, 2: 1.0, 4: 2.0}, 2.0),
        ({1: 2.0, 2: 1.0}, 2.0),  # two are no majority
        ({1: 2.0, 2: 1.0, 4: None, 8: 1.0}, 1.0),  # one does not run
        ({1: 2.0, 2: 2.0, 4: 1.0, 8: 1.0, 16: 1.0}, 1.0),  # neighbors share a fault
        ({1: 1.0, 2: 1.0, 4: 1.0}, 1.0),
    ],
)
def test_checker_two_others_that_agree_outvote_the_first(values, right):
    y = torch.zeros(4)

    def work(block):
        if values[block] is None:
            raise RuntimeError("launch failed")
        y.fill_(values[block])

    check = voted(work, {"y": y}, values)
    ran = {block: value for block, value in values.items() if value is not None}
    for block, value in ran.items():
        assert (check.error(triton.Config({"BLOCK": block})) == 0) == (value == right)
    assert (check.outvoted is None) == (right == values[1])


def test_checker_reference_decides():
    x = torch.full((4,), 3.0)
    y = torch.zeros(4)
    scratch = torch.zeros(2)

    def work(block):
        y.copy_(x * block)
        scratch.fill_(block)

    def reference(x, y, n, **others):
        assert (n, list(others)) == (4, ["scratch"])
        right = x.double() * 2
        x.zero_()  # it may write where it likes
        return {"y": right}

    check = voted(work, {"x": x, "y": y, "n": 4, "scratch": scratch}, (1, 2), reference)
    assert check.error(FIRST) == 0.5
    assert check.error(SECOND) == 0.0
    assert y.tolist() == [0.0] * 4
    wider = voted(work, {"x": x, "y": y}, (1, 2), lambda x, y: {"y": torch.ones(5)})
    assert wider.error(FIRST) == math.inf


def test_checker_reference_returns_all_tensors_of_a_list():
    pair = [torch.zeros(4), torch.zeros(4)]

    def work(block):
        pair[0].fill_(1.0)
        pair[1].fill_(block)

    def reference(pair):
        return {"pair": [torch.ones(4), torch.full((4,), 2.0)]}

    check = voted(work, {"pair": pair}, (1, 2), reference)
    assert (check.error(FIRST), check.error(SECOND)) == (0.5, 0.0)


@pytest.mark.parametrize("returned", [torch.ones(4), {}, {"z": torch.ones(4)}, None])
def test_checker_reference_without_tensor_names_is_an_error(returned):
    y = torch.zeros(4)
    with pytest.raises(UsageError, match="from names of tensor arguments to tensors: y"):
        voted(lambda block: None, {"y": y}, (1, 2), lambda y: returned)


WRONG = {64: 2.0, 128: 1.0, 256: 1.0, 512: 1.0}
"""What a kernel writes, by block size; it should write ones."""


@pytest.fixture
def wrong_first(driver):
    def times(launch):
        block = launch.config["BLOCK"]
        launch.arguments["y"].fill_(WRONG[block])
        return {64: 1.0, 256: 2.0}.get(block, 4.0)

    driver.times = times
    return driver


def tuned(**options):
    from tuned_kernels import configs, copy

    return foretune.autotune(configs(*WRONG), ["n"], budget="all", check=1e-3, **options)(
        triton.jit(copy)
    )


def test_check_wrong_first_configuration_is_not_chosen(wrong_first, tensors):
    kernel = tuned(store=False)
    with pytest.warns(ForetuneWarning, match="BLOCK: 64.* of copy differs from two others"):
        kernel[(1,)](*tensors, 1024)
    assert kernel.best_config.kwargs["BLOCK"] == 256
    assert kernel.configs_timings[kernel.configs[0]][0] == math.inf


def test_check_reference_overrules_a_majority(wrong_first, tensors, tmp_path):
    def ones(y, **_):
        return {"y": torch.ones_like(y)}

    def twos(y, **_):
        return {"y": 2.0 * torch.ones_like(y)}

    for reference, block in ((ones, 256), (twos, 64), (ones, 256)):
        kernel = tuned(store=tmp_path / "t.db", reference=reference)
        kernel[(1,)](*tensors, 1024)
        assert kernel.best_config.kwargs["BLOCK"] == block


def test_check_without_a_right_output_is_an_error(wrong_first, tensors):
    kernel = tuned(store=False, reference=lambda y, **_: {"y": 3.0 * torch.ones_like(y)})
    for _ in range(2):
        with pytest.raises(UsageError, match=r"no configuration of copy .* from the reference by"):
            kernel[(1,)](*tensors, 1024)


def test_check_error_of_the_reference_is_raised(wrong_first, tensors):
    with pytest.raises(ZeroDivisionError):
        tuned(store=False, reference=lambda **_: 1 / 0)[(1,)](*tensors, 1024)


def test_check_slow_compilation_has_no_vote(wrong_first, tensors):
    import time

    def slow(name, config):
        if config["BLOCK"] == 256:
            time.sleep(5)

    wrong_first.on_compile = slow
    kernel = tuned(store=False, compile_limit_s=0.05)
    with pytest.warns(ForetuneWarning, match="differs from two others"):
        kernel[(1,)](*tensors, 1024)
    assert kernel.best_config.kwargs["BLOCK"] in (128, 512)


def test_check_marks_the_configuration_that_runs(wrong_first, tensors, tmp_path):
    marked = []

    def times(launch):
        block = launch.config["BLOCK"]
        launch.arguments["y"].fill_(WRONG[block])
        with closing(sqlite3.connect(tmp_path / "t.db")) as database, database:
            rows = database.execute("SELECT described FROM foretune_begun").fetchall()
        marked.append(f'"BLOCK": {block},' in str(rows))
        return 1.0

    wrong_first.times = times
    kernel = tuned(store=tmp_path / "t.db")
    with pytest.warns(ForetuneWarning, match="differs from two others"):
        kernel[(1,)](*tensors, 1024)
    *measured, chosen = marked
    assert all(measured)
    assert not chosen
