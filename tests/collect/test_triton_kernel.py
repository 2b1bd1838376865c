"""What all kernels in Triton share: formats, comparing tensors, and how they are found."""

import sys

import numpy as np
import pytest

from foretune import registry
from foretune.cli import doctor
from foretune.errors import MissingExtra
from foretune.registry import TRITON_PREFIX, get_kernel, registered
from foretune.relative_error import relative_error

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from foretune.collect.kernels import triton_kernel


def test_errors_of_tensors(monkeypatch):
    kernel = get_kernel("triton_gemm")
    x = torch.arange(1, 101, dtype=torch.float16).reshape(10, 10)
    assert kernel.relative_error(x, x.double()) == 0
    on_host = relative_error((x * 1.125).numpy(), x.numpy())
    assert 0.08 < on_host < 0.125
    assert kernel.relative_error(x * 1.125, x) == pytest.approx(on_host, rel=1e-3)
    assert kernel.relative_error(x, x[:5]) == np.inf
    monkeypatch.setattr(triton_kernel, "_CHUNK", 7)  # the same in pieces
    assert kernel.relative_error(x * 1.125, x) == pytest.approx(on_host, rel=1e-3)
    for bad in (np.nan, np.inf):
        spoilt = x.clone()
        spoilt[9, 9] = bad
        assert kernel.relative_error(spoilt, x) == np.inf
        assert kernel.relative_error(spoilt, spoilt.clone()) == 0


@pytest.mark.parametrize("dtype", [*triton_kernel.BITS, "int32"])
def test_poison_leaves_nothing_right(dtype):
    kernel = get_kernel("triton_gemm")
    of = torch.int32 if dtype == "int32" else triton_kernel.torch_dtype(dtype)
    output = torch.ones(6, 10).to(of)
    expected = output.clone()
    kernel.invalidate_output(output)
    assert kernel.relative_error(output, expected) > 10


def test_formats_have_their_sizes():
    for name, bits in triton_kernel.BITS.items():
        assert torch.empty(1, dtype=triton_kernel.torch_dtype(name)).element_size() == bits // 8
    sizes = triton_kernel.element_bytes(np.array(["fp32", "bf16", "fp8"]))
    assert sizes.tolist() == [4, 2, 1]


def test_lists_of_kernels_do_not_import_triton(monkeypatch):
    def never(name):
        raise AssertionError("the kernel was imported")

    monkeypatch.setattr(doctor, "get_kernel", never)
    names = [name for name in registered("kernels") if name.startswith(TRITON_PREFIX)]
    assert names
    for name in names:
        finding = doctor._kernel(name, has_gpu=False)
        assert not finding.works
        assert "needs a GPU" in finding.note


def test_triton_kernel_without_triton_names_extra(monkeypatch):
    for module in [m for m in sys.modules if m.startswith("foretune.collect.kernels.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "triton", None)  # makes importing it fail
    with pytest.raises(MissingExtra, match=r"triton_gemm.* pip install '\.\[gpu\]'"):
        registry.load("kernels", "triton_gemm")
