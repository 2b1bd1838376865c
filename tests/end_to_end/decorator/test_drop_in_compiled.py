"""Programs compiled by torch: the graph has the kernel with its configurations."""

import warnings

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from torch import _dynamo as dynamo
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _triton as torch_triton
from triton.runtime.autotuner import Autotuner
from tuned_kernels import best_is, blocks_of, configs

import foretune
from foretune.errors import ForetuneWarning
from foretune.tune.triton.patching import KEPT


@pytest.fixture(autouse=True)
def fresh_compiler(monkeypatch):
    """Let torch find Triton: it looks for CUDA, not for Triton's driver."""
    monkeypatch.setattr(torch_triton, "has_triton", lambda: True)
    dynamo.reset()
    kernel_side_table.reset_table()
    yield
    dynamo.reset()
    kernel_side_table.reset_table()


@pytest.fixture
def copying(driver):
    """Let every launch copy, as the kernel does."""

    def times(launch):
        launch.arguments["y"].copy_(launch.arguments["x"])
        return best_is(256)(launch)

    driver.times = times
    return driver


def traced(tuned, x):
    """Compile a program around the kernel; return its result and the kernel's graph node."""
    graphs = []

    def capture(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def program(x, n: int):
        y = torch.zeros_like(x)
        tuned[(1,)](x, y, n)
        return y + 1

    result = torch.compile(program, backend=capture, fullgraph=True)(x, x.numel())
    (graph,) = graphs
    (node,) = (node for node in graph.graph.nodes if "triton" in str(node.target))
    return result, node


def kernel_of(node):
    return kernel_side_table.get_kernel(node.kwargs["kernel_idx"])


def test_trace_has_all_configurations(autotune, copying):
    tuned = autotune(configs(128, 256, 512), ["n"])(triton.jit(tuned_kernels.copy))
    result, node = traced(tuned, torch.full((64,), 3.0))
    assert result.eq(4).all()
    kernel = kernel_of(node)
    assert isinstance(kernel, Autotuner)
    assert blocks_of(kernel.configs) == [128, 256, 512]
    assert len(node.kwargs["grid"]) == 3
    assert copying.launches[-1].config["BLOCK"] == 256


def test_trace_has_the_reduced_list(autotune, copying):
    tuned = autotune(configs(128, 256, 512), ["n"])(triton.jit(tuned_kernels.copy))
    tuned.configs = [tuned.configs[2]]
    result, node = traced(tuned, torch.full((64,), 3.0))
    assert result.eq(4).all()
    assert blocks_of(kernel_of(node).configs) == [512]
    assert len(node.kwargs["grid"]) == 1
    assert blocks_of(copying.launches) == [512]


def test_trace_with_restored_arguments(autotune, copying):
    tuned = autotune(configs(128, 256), ["n"], restore_value=["y"], reset_to_zero=["y"])(
        triton.jit(tuned_kernels.copy)
    )
    result, node = traced(tuned, torch.full((64,), 3.0))
    assert result.eq(4).all()
    assert blocks_of(kernel_of(node).configs) == [128, 256]


def test_trace_with_heuristics_below(autotune, copying):
    doubled = triton.heuristics({"m": lambda args: 2})(triton.jit(tuned_kernels.copy))
    tuned = autotune(configs(128, 256), ["n"])(doubled)
    result, node = traced(tuned, torch.full((64,), 3.0))
    assert result.eq(4).all()
    assert [config.kwargs["m"] for config in kernel_of(node).configs] == [2, 2]


def test_trace_after_tuning(autotune, copying):
    tuned = autotune(configs(128, 256), ["n"])(triton.jit(tuned_kernels.copy))
    x = torch.full((64,), 3.0)
    tuned[(1,)](x, torch.zeros(64), 64)
    copying.launches.clear()
    result, node = traced(tuned, x)
    assert result.eq(4).all()
    assert blocks_of(kernel_of(node).configs) == [128, 256]


def test_trace_within_an_operator_of_torch(autotune, copying):
    tuned = autotune(configs(128, 256), ["n"])(triton.jit(tuned_kernels.copy))
    with torch.library._scoped_library("tuned_toys", "FRAGMENT"):

        @torch.library.triton_op("tuned_toys::copied", mutates_args={})
        def copied(x: torch.Tensor) -> torch.Tensor:
            y = torch.zeros_like(x)
            torch.library.wrap_triton(tuned)[(1,)](x, y, x.numel())
            return y

        x = torch.full((64,), 3.0)
        assert copied(x).eq(3).all()
        assert copying.launches[-1].config["BLOCK"] == 256
        graph = make_fx(lambda x: copied(x) + 1)(x)
        assert graph(x).eq(4).all()
        assert "tuned_toys.copied" in graph.code


class TestPatched:
    """With ``patch_triton``, torch sees a short list."""

    @pytest.fixture(autouse=True)
    def _patched(self, monkeypatch, tmp_path):
        monkeypatch.setenv("FORETUNE_STORE", str(tmp_path / "tuned.db"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ForetuneWarning)  # other tests' classes
            undo = foretune.patch_triton()
        yield
        undo()

    def test_patched_trace_has_the_default_and_the_most_promising(self, copying):
        sizes = [2**i for i in range(4, 13)]
        tuned = triton.autotune(configs(*sizes), ["n"])(triton.jit(tuned_kernels.copy))
        result, node = traced(tuned, torch.full((64,), 3.0))
        assert result.eq(4).all()
        kept = blocks_of(kernel_of(node).configs)
        assert len(kept) in (KEPT, KEPT + 1)
        assert kept[0] == sizes[0]
        assert len(node.kwargs["grid"]) == len(kept)
        assert blocks_of(tuned.configs) == sizes

    def test_patched_trace_has_the_best_measured(self, copying):
        sizes = [2**i for i in range(4, 13)]
        tuned = foretune.autotune(configs(*sizes), ["n"], budget=2)(triton.jit(tuned_kernels.copy))
        x = torch.full((64,), 3.0)
        tuned[(1,)](x, torch.zeros(64), 64)
        best = tuned.best_config.kwargs["BLOCK"]
        _, node = traced(tuned, x)
        kept = blocks_of(kernel_of(node).configs)
        assert best in kept
        assert len(kept) <= 3

    def test_patched_trace_with_dynamic_sizes(self, copying):
        tuned = triton.autotune(configs(*(2**i for i in range(4, 13))), ["n"])(
            triton.jit(tuned_kernels.copy)
        )
        graphs = []

        def capture(graph, inputs):
            graphs.append(graph)
            return graph.forward

        @torch.compile(backend=capture, fullgraph=True, dynamic=True)
        def program(x):
            y = torch.zeros_like(x)
            tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
            return y + 1

        for size in (64, 96, 128):
            assert program(torch.full((size,), 3.0)).eq(4).all()
        assert len(graphs) == 1
        (node,) = (n for n in graphs[0].graph.nodes if "triton" in str(n.target))
        assert len(kernel_of(node).configs) <= KEPT + 1

    def test_patched_trace_keeps_a_list_that_cannot_be_ranked(self, copying, monkeypatch):
        tuned = triton.autotune(configs(*(2**i for i in range(4, 13))), ["n"])(
            triton.jit(tuned_kernels.copy)
        )
        monkeypatch.setattr(type(tuned), "rank", None)
        _, node = traced(tuned, torch.full((64,), 3.0))
        assert len(kernel_of(node).configs) == 9
