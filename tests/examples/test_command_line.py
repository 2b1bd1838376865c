"""The kernels in examples/kernels by FILE.py:NAME: found, tuned, inspected, sent elsewhere."""

import sys
from pathlib import Path

import pytest
from commands import run_json

from foretune import registry
from foretune.kernel import Kernel
from foretune.registry import get_kernel
from foretune.support.code_hash import uninstalled_sources

FOLDER = Path(__file__).parents[2] / "examples" / "kernels"
KERNELS = {
    "conv2d.py:Conv2d": {"conv2d"},
    "triton_attention.py:TritonAttention": {"triton_attention"},
    "triton_attention_tma.py:TritonAttentionTma": {"triton_attention", "triton_attention_tma"},
    "triton_gemm_tma.py:TritonGemmTma": {"triton_gemm_tma"},
    "triton_grouped_gemm.py:TritonGroupedGemm": {"expert_counts", "triton_grouped_gemm"},
    "triton_norm.py:TritonNorm": {"triton_norm", "triton_rows"},
    "triton_softmax.py:TritonSoftmax": {"triton_rows", "triton_softmax"},
}


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    """No folder of examples on the path, and names that one test registers are not seen later."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p).resolve() != FOLDER])
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is unset
    registry.reset()
    yield
    registry.reset()


@pytest.mark.parametrize("location", KERNELS)
def test_a_kernel_is_found_with_the_files_beside_it_that_it_imports(location):
    pytest.importorskip("triton" if location.startswith("triton") else "numba")
    kernel = get_kernel(str(FOLDER / location))
    assert kernel.name == Path(location.partition(":")[0]).stem
    sources = uninstalled_sources(type(kernel), Kernel)  # what Ray sends along
    assert sources == sorted(FOLDER / f"{name}.py" for name in KERNELS[location])


@pytest.mark.usefixtures("toy_place")
def test_one_is_tuned_in_another_process(capsys, monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.chdir(FOLDER.parents[1])
    found = run_json(
        capsys,
        "tune",
        "examples/kernels/conv2d.py:Conv2d",
        "--problem",
        "H=8,W=9,C=3,F=5",
        "--budget",
        "1",
    )
    assert [row["status"] for row in found["trace"]] == ["ok"]


def test_one_is_inspected(capsys, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.chdir(FOLDER)
    found = run_json(
        capsys,
        "inspect",
        "triton_softmax:_whole_rows",
        "--arg",
        "x=fp16*",
        "--arg",
        "y=fp16*",
        "--arg",
        "rows=4096",
        "--arg",
        "columns=1000",
        "--config",
        "ROWS=1,BLOCK=1024,STAGES=1",
        "--target",
        "sm_90",
    )
    assert [row["status"] for row in found["configs"]] == ["ok"]
