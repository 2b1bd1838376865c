"""Attention by tensor descriptors: its spaces, and code for Hopper and Blackwell.

Its numbers are checked with those of all kernels in Triton, interpreted.
"""

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[gpu]'")
pytest.importorskip("triton", reason="needs triton: pip install '.[gpu]'")

import triton_attention
from triton_attention_tma import TritonAttentionTma

from foretune.collect.compiled.arguments import describe
from foretune.collect.compiled.compiling import compile_full, specialize
from foretune.collect.compiled.gpu_targets import get_target
from foretune.collect.compiled.static_features import static_features
from foretune.collect.kernels import triton_kernel
from foretune.collect.kernels.triton_gemm import Limits
from foretune.space import Configuration

HOPPER = Limits(232_448, threads=32, cores=132, reads_shared=True)
BLACKWELL = Limits(232_448, threads=32, cores=148, reads_shared=True, specializes=True)
KERNEL = TritonAttentionTma()


@pytest.fixture
def on_device(monkeypatch):
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set
    monkeypatch.setattr(triton_kernel, "torch_device", lambda kernel: torch.device("cpu"))
    return lambda limits: monkeypatch.setattr(triton_attention, "device_limits", lambda: limits)


@pytest.mark.parametrize("limits", [HOPPER, BLACKWELL], ids=["Hopper", "Blackwell"])
def test_spaces(limits, on_device):
    on_device(limits)
    for problem in [KERNEL.problem(seq_len=1, heads=1), *KERNEL.training_problems(12, seed=1)]:
        assert KERNEL.default(problem) in KERNEL.space(problem)
    space = KERNEL.space(KERNEL.problem(seq_len=4096, heads=16))
    assert {c["WARP_SPECIALIZE"] for c in space} == {False, limits.specializes} | {False}


@pytest.mark.parametrize(
    ("architecture", "more", "unit"),
    [
        ("sm_90", {}, "wgmma.mma_async"),
        ("sm_100", {}, "tcgen05.mma"),
        ("sm_100", {"WARP_SPECIALIZE": True}, "tcgen05.mma"),
    ],
)
def test_triton_attention_tma_compiles(architecture, more, unit, on_device):
    on_device(HOPPER)
    problem, target = KERNEL.problem(seq_len=512, heads=2, dtype="fp16"), get_target(architecture)
    config = Configuration({**KERNEL.default(problem), **more})
    (one,), _ = KERNEL.launches(problem, config, KERNEL.make_inputs(problem))
    arguments = [describe(a) for a in one.arguments]
    code = compile_full(specialize(one.function, arguments, {}, dict(one.options), target))
    assert unit in code.asm["ptx"]
    assert code.asm["ptx"].count("cp.async.bulk.tensor") >= 3
    found = static_features(code, target)
    assert found["shared_bytes"] <= HOPPER.shared_bytes
    assert (found["tensor_memory"] > 0) == (architecture == "sm_100")
