"""`freeze`: configurations that torch.compile may choose from."""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from torch import _dynamo as dynamo
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch.utils import _triton as torch_triton
from tuned_kernels import blocks_of, by_size, configs

import foretune
from foretune.errors import UsageError


@pytest.fixture
def tuned(driver):
    def times(launch):
        launch.arguments["y"].copy_(launch.arguments["x"])
        return by_size(launch)

    driver.times = times
    decorator = foretune.autotune(configs(64, 128, 256), ["n"], budget="all", store=False)
    return decorator(triton.jit(tuned_kernels.copy))


def test_freeze_keeps_the_choices(tuned, driver, tensors):
    tuned[(1,)](*tensors, 64)
    tuned[(1,)](*tensors, 65)
    assert tuned.freeze() is tuned
    assert blocks_of(tuned.configs) == [128]
    driver.launches.clear()
    tuned[(1,)](*tensors, 4096)
    assert blocks_of(driver.launches) == [128]


def test_freeze_keeps_the_choice_of_every_problem(tuned, driver, tensors):
    tuned[(1,)](*tensors, 64)
    tuned[(1,)](*tensors, 4096)
    assert blocks_of(tuned.freeze().configs) == [128, 256]


def test_freeze_keeps_given_configurations(tuned, driver, tensors):
    kept = tuned.configs[0]
    assert tuned.freeze([kept]).configs == [kept]
    tuned[(1,)](*tensors, 64)
    assert blocks_of(driver.launches) == [64]


def test_freeze_without_a_choice_is_an_error(tuned):
    with pytest.raises(UsageError, match="copy has chosen no configuration yet"):
        tuned.freeze()


@pytest.fixture
def compiler(monkeypatch):
    """Let torch find Triton: it looks for CUDA, not for Triton's driver."""
    monkeypatch.setattr(torch_triton, "has_triton", lambda: True)
    dynamo.reset()
    kernel_side_table.reset_table()
    yield
    dynamo.reset()
    kernel_side_table.reset_table()


def test_freeze_torch_compiles_only_the_choice(tuned, driver, compiler):
    x = torch.full((64,), 3.0)
    nodes = []
    tuned[(1,)](x, torch.zeros(64), 64)
    tuned.freeze()
    driver.launches.clear()

    def capture(graph, inputs):
        nodes.extend(node for node in graph.graph.nodes if "triton" in str(node.target))
        return graph.forward

    def program(x, n: int):
        y = torch.zeros_like(x)
        tuned[(1,)](x, y, n)
        return y + 1

    assert torch.compile(program, backend=capture, fullgraph=True)(x, 64).eq(4).all()
    (node,) = nodes
    assert blocks_of(kernel_side_table.get_kernel(node.kwargs["kernel_idx"]).configs) == [128]
    assert len(node.kwargs["grid"]) == 1
    assert blocks_of(driver.launches) == [128]
