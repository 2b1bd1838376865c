"""Comparing what configurations compute."""

import math

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[gpu]'")
triton = pytest.importorskip("triton", reason="needs triton: pip install '.[gpu]'")

import foretune
from foretune.errors import ForetuneWarning
from foretune.tune.triton import output_check
from foretune.tune.triton.output_check import ComparisonError, OutputChecker

FIRST, SECOND = triton.Config({"BLOCK": 1}), triton.Config({"BLOCK": 2})


def checker(work, **arguments):
    """Return a checker of two configurations; ``work(BLOCK)`` does what a launch would."""
    return OutputChecker(lambda config: work(config.kwargs["BLOCK"]), arguments, [FIRST, SECOND])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.float8_e4m3fn])
def test_the_difference_of_outputs(dtype):
    y = torch.ones(8).to(dtype)

    def work(block):
        y.copy_(torch.full((8,), 2.0 * block).to(dtype))

    check = checker(work, y=y, n=8)
    assert check.error(FIRST) == 0
    assert check.error(SECOND) == 1
    assert (y.double() == 1).all()  # as it was before


def test_pieces_add_up(monkeypatch):
    y = torch.zeros(7, 5, 3)[:, ::2]  # of no contiguous memory
    other = torch.randn(7, 3, 3)

    def work(block):
        y.copy_(other * block)

    whole = checker(work, y=y).error(SECOND)
    monkeypatch.setattr(output_check, "PIECE", 4)
    assert checker(work, y=y).error(SECOND) == pytest.approx(whole)
    assert 0.5 < whole <= 1


def test_a_large_value_hides_nothing():
    y = torch.zeros(100)

    def work(block):
        y.fill_(2.0 if block == 1 else 0.0)
        y[0] = 1e5

    assert checker(work, y=y).error(SECOND) > 0.5


def test_inputs_that_are_written_to_are_found_and_put_back():
    x, y = torch.ones(4), torch.zeros(4)

    def work(block):
        y.fill_(1.0)
        if block == 2:
            x[0] = 3.0

    check = checker(work, x=x, y=y)
    assert check.error(SECOND) == 1
    assert (x == 1).all()
    assert check.error(FIRST) == 0


def test_nothing_is_left_where_a_launch_fails():
    y = torch.zeros(4)

    def work(block):
        y.fill_(block)
        if block == 2:
            raise RuntimeError("launch failed")

    check = checker(work, y=y)
    with pytest.raises(RuntimeError, match="launch failed"):
        check.error(SECOND)
    assert (y == 0).all()


def test_memory_without_numbers():
    y = torch.zeros(4)

    def work(block):
        y.fill_(math.nan)
        y[:block] = 1.0

    assert checker(work, y=y).error(FIRST) == 0
    assert checker(work, y=y).error(SECOND) == math.inf


def test_what_stands_behind_descriptors_is_compared():
    from triton.tools.tensor_descriptor import TensorDescriptor

    y = torch.zeros(16, 16)
    described = TensorDescriptor.from_tensor(y, [16, 16])
    check = checker(lambda block: y.fill_(block), out=described)
    assert check.error(SECOND) == 1
    seen = triton.reinterpret(y, triton.language.int32)
    assert checker(lambda block: y.fill_(block), out=(seen,)).error(SECOND) == 1


def test_what_cannot_be_read_is_not_equal():
    class Pointer:
        def data_ptr(self):
            return 1024

    with pytest.raises(ComparisonError, match="out is a Pointer, which cannot be read"):
        checker(lambda block: None, out=Pointer())


def test_copies_take_the_hosts_memory(monkeypatch):
    y = torch.zeros(16)
    check = checker(lambda block: y.fill_(block), y=y)
    assert all(t.device.type == "cpu" for t in (*check._before, *check._expected))

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")

    monkeypatch.setattr(output_check, "_pieces", full)
    with pytest.raises(ComparisonError, match="out of memory"):
        check.restore_arguments()


def test_without_memory_only_what_was_compared_is_chosen(driver, tensors, monkeypatch):
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


def test_arguments_that_a_kernel_reads_and_changes_are_found_and_put_back(driver, tensors):
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


def test_what_is_only_written_is_not_taken_for_changed():
    y, counts = torch.zeros(8), torch.ones(8)
    assert checker(lambda block: y.fill_(2), y=y).changed == []
    assert checker(lambda block: counts.mul_(2), y=y, counts=counts).changed == ["counts"]
