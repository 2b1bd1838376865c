"""The product by tensor descriptors: its spaces, and code for Hopper and Blackwell.

Its numbers are checked with those of all kernels in Triton, interpreted.
"""

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[gpu]'")
pytest.importorskip("triton", reason="needs triton: pip install '.[gpu]'")

import triton_gemm_tma
from triton_gemm_tma import TritonGemmTma

from foretune.collect.compiled.arguments import describe
from foretune.collect.compiled.compiling import compile_full, specialize
from foretune.collect.compiled.gpu_targets import get_target
from foretune.collect.compiled.static_features import static_features
from foretune.collect.kernels import triton_kernel
from foretune.collect.kernels.triton_gemm import Limits
from foretune.errors import ProblemError
from foretune.space import Configuration

HOPPER = Limits(232_448, threads=32, cores=132, reads_shared=True)
BLACKWELL = Limits(232_448, threads=32, cores=148, reads_shared=True, specializes=True)
KERNEL = TritonGemmTma()


@pytest.fixture
def on_device(monkeypatch):
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set
    monkeypatch.setattr(triton_kernel, "torch_device", lambda kernel: torch.device("cpu"))
    return lambda limits: monkeypatch.setattr(triton_gemm_tma, "device_limits", lambda: limits)


@pytest.mark.parametrize("limits", [HOPPER, BLACKWELL], ids=["Hopper", "Blackwell"])
def test_spaces(limits, on_device):
    on_device(limits)
    for problem in [KERNEL.problem(M=1, N=8, K=8), *KERNEL.training_problems(12, seed=1)]:
        assert KERNEL.default(problem) in KERNEL.space(problem)
    space = KERNEL.space(KERNEL.problem(M=4096, N=4096, K=4096))
    assert len(space) > 1000
    assert {c["WARP_SPECIALIZE"] for c in space} == {False, limits.specializes} | {False}


@pytest.mark.parametrize(
    ("architecture", "more", "unit"),
    [
        ("sm_90", {"PERSISTENT": True}, "wgmma.mma_async"),
        ("sm_100", {"PERSISTENT": False}, "tcgen05.mma"),
        ("sm_100", {"PERSISTENT": True, "WARP_SPECIALIZE": True}, "tcgen05.mma"),
    ],
)
def test_triton_gemm_tma_compiles(architecture, more, unit, on_device):
    on_device(HOPPER)
    problem, target = KERNEL.problem(M=512, N=512, K=512), get_target(architecture)
    config = Configuration({**KERNEL.default(problem), "BLOCK_M": 128, **more})
    (one,), _ = KERNEL.launches(problem, config, KERNEL.make_inputs(problem))
    arguments = [describe(a) for a in one.arguments]
    code = compile_full(specialize(one.function, arguments, {}, dict(one.options), target))
    assert unit in code.asm["ptx"]
    assert code.asm["ptx"].count("cp.async.bulk.tensor") >= 2
    found = static_features(code, target)
    assert found["shared_bytes"] <= HOPPER.shared_bytes
    assert (found["tensor_memory"] > 0) == (architecture == "sm_100")


def test_rows_that_no_descriptor_takes(on_device):
    on_device(HOPPER)
    with pytest.raises(ProblemError, match=r"K=70 makes rows .* take a multiple of 8"):
        KERNEL.make_inputs(KERNEL.problem(M=16, N=64, K=70))
    with pytest.raises(ProblemError, match="N=83"):
        KERNEL.make_inputs(KERNEL.problem(M=16, N=83, K=64))
    with pytest.raises(ProblemError, match=r"K=72 .* take a multiple of 16"):
        KERNEL.make_inputs(KERNEL.problem(M=16, N=64, K=72, dtype="fp8"))
