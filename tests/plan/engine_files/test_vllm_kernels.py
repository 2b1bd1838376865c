"""vLLM's kernels through a stand-in for vLLM: the same names and arguments, computed by torch.

What it cannot show, because vLLM runs on GPUs only: that vLLM's kernels give what they should.
"""

import sys
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from foretune.collect import InProcessRunner, Timing
from foretune.device import Device
from foretune.errors import MeasurementError
from foretune.measurement import Status
from foretune.space import Configuration

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from foretune.collect.kernels import triton_kernel
from foretune.plan.engine_files import vllm_kernels

LAYERS = "vllm.model_executor.layers"
CHOSEN = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1,
          "num_warps": 4, "num_stages": 3}  # fmt: skip


def _dequantized(weights, scale, block):
    if scale is None:
        return weights.float()
    if not block:
        return weights.float() * scale[..., None, None]
    rows, columns = weights.shape[-2:]
    each = scale.repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
    return weights.float() * each[..., :rows, :columns]


@pytest.fixture
def taken(monkeypatch):
    """Modules as vLLM 0.33 has them; the list of the configurations that kernels took."""
    taken, current = [], [None]
    moe, inner = ModuleType(f"{LAYERS}.fused_moe"), ModuleType(f"{LAYERS}.fused_moe.fused_moe")
    config = ModuleType(f"{LAYERS}.fused_moe.config")
    fp8 = ModuleType(f"{LAYERS}.quantization.utils.fp8_utils")

    @contextmanager
    def override_config(chosen):
        before, current[0] = current[0], chosen
        yield
        current[0] = before

    def fused_experts(hidden_states, w1, w2, topk_weights, topk_ids, quant_config=None):
        taken.append(current[0])
        if current[0]["num_stages"] == 5:
            raise RuntimeError("out of resource: shared memory")
        scales = quant_config or SimpleNamespace(w1_scale=None, w2_scale=None, block_shape=None)
        up = _dequantized(w1, scales.w1_scale, scales.block_shape)
        down = _dequantized(w2, scales.w2_scale, scales.block_shape)
        out = torch.zeros_like(hidden_states, dtype=torch.float32)
        for token, (shares, experts) in enumerate(zip(topk_weights, topk_ids, strict=True)):
            for share, expert in zip(shares, experts.tolist(), strict=True):
                gate, wide = (up[expert] @ hidden_states[token].float()).chunk(2)
                out[token] += share * (down[expert] @ (torch.nn.functional.silu(gate) * wide))
        wrong = 2 if current[0]["num_stages"] == 4 else 1
        return (wrong * out).to(hidden_states.dtype)

    def get_default_config(M, E, N, K, topk, dtype, block_shape=None):
        assert dtype in (None, "fp8_w8a8")
        assert block_shape in (None, [128, 128])
        return {**CHOSEN, "BLOCK_SIZE_M": 16 if M <= 32 else 64, "SPLIT_K": 1}

    def w8a8_triton_block_scaled_mm(A, B, As, Bs, block_size, output_dtype):
        configs = fp8.get_w8a8_block_fp8_configs(*B.shape, *block_size)
        taken.append(configs and configs[A.shape[0]])
        a = A.float() * As.repeat_interleave(128, -1)[:, : A.shape[1]]
        return (a @ _dequantized(B, Bs, block_size).T).to(output_dtype)

    moe.override_config, moe.fused_experts = override_config, fused_experts
    inner.get_default_config = get_default_config
    config.fp8_w8a8_moe_quant_config = SimpleNamespace
    fp8.get_w8a8_block_fp8_configs = lambda *sizes: None
    fp8.w8a8_triton_block_scaled_mm = w8a8_triton_block_scaled_mm
    for module in (moe, inner, config, fp8):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(vllm_kernels, "version", lambda name: "0.33.0")
    monkeypatch.setattr(triton_kernel, "torch_device", lambda kernel: torch.device("cpu"))
    monkeypatch.setattr(vllm_kernels, "torch_device", lambda kernel: torch.device("cpu"))
    return taken


def run(kernel, problem, *changes):
    device = Device("A GPU", "gpu", specs={"cores": 2.0})
    configs = [Configuration({**CHOSEN, **change}) for change in changes]
    with InProcessRunner(device, Timing(max_seconds=0.01, warmup_s=0.001)) as runner:
        return list(runner.run(kernel, problem, configs))


@pytest.mark.parametrize("dtype", vllm_kernels.FORMATS)
def test_experts_take_a_configuration_and_are_checked(taken, dtype):
    kernel = vllm_kernels.VllmExperts()
    problem = kernel.problem(M=3, E=4, top_k=2, N=160, K=200, dtype=dtype)
    stages = ({"num_stages": n} for n in (3, 4, 5))
    right, wrong, broken = run(kernel, problem, *stages)
    assert (right.status, right.error) == (Status.OK, "")
    assert wrong.status is Status.WRONG_RESULT
    assert broken.status in (Status.COMPILE_ERROR, Status.RUNTIME_ERROR)
    assert "shared memory" in broken.error
    assert {config["num_stages"] for config in taken} == {3, 4, 5}


def test_quantized_weights_are_what_they_were():
    weights = torch.randn(2, 300, 200)
    for kind, limit in (("fp8", 0.05), (vllm_kernels.FP8_BLOCK, 0.05)):
        small, scale = vllm_kernels._quantized(weights, kind)
        assert small.dtype == torch.float8_e4m3fn
        block = [128, 128] if kind == vllm_kernels.FP8_BLOCK else None
        assert scale.shape == ((2, 3, 2) if block else (2,))
        back = _dequantized(small, scale, block)
        assert float((back - weights).norm() / weights.norm()) < limit
    rows, scale = vllm_kernels._quantized_rows(weights[0])
    assert scale.shape == (300, 2)
    back = rows.float() * scale.repeat_interleave(128, -1)[:, :200]
    assert float((back - weights[0]).norm() / weights[0].norm()) < 0.05


def test_linear_layers_take_a_configuration_in_place_of_a_file(taken):
    kernel = vllm_kernels.VllmLinear()
    problem = kernel.problem(M=5, N=256, K=384)
    (right,) = run(kernel, problem, {})
    assert (right.status, right.error) == (Status.OK, "")
    assert CHOSEN in taken
    assert None in taken  # the reference is vLLM's own default
    looked_up = sys.modules[f"{LAYERS}.quantization.utils.fp8_utils"].get_w8a8_block_fp8_configs
    assert looked_up(256, 384, 128, 128) is None


@pytest.mark.usefixtures("taken")
def test_spaces_hold_the_default_and_what_fits():
    experts, linear = vllm_kernels.VllmExperts(), vllm_kernels.VllmLinear()
    small = experts.problem(M=1, E=8, top_k=2, N=1792, K=4096)
    blocks = experts.problem(M=512, E=8, top_k=2, N=1792, K=4096, dtype="fp8_block")
    for kernel, problem in ((experts, small), (experts, blocks),
                            (linear, linear.problem(M=1, N=512, K=512))):  # fmt: skip
        space = kernel.space(problem)
        assert kernel.default(problem) in space
        assert len(space) > 100
    assert max(c["BLOCK_SIZE_K"] for c in experts.space(blocks)) == 128
    limit = triton_kernel.SHARED_MEMORY_BYTES
    for c in experts.space(small):
        tiles = 2 * (c["BLOCK_SIZE_M"] + c["BLOCK_SIZE_N"]) * c["BLOCK_SIZE_K"]
        assert tiles * (c["num_stages"] - 1) <= limit


def test_work_in_columns_is_that_of_single_problems():
    for kernel in (vllm_kernels.VllmExperts(), vllm_kernels.VllmLinear()):
        problems = kernel.training_problems(5)
        columns = {name: np.array([p[name] for p in problems]) for name in problems[0]}
        together = kernel.cost(columns, {})
        for i, problem in enumerate(problems):
            one = kernel.cost(problem, {})
            assert one.flops == np.asarray(together.flops)[i]
            assert one.bytes_moved == pytest.approx(np.asarray(together.bytes_moved)[i])
            assert one.dtype == np.broadcast_to(together.dtype, 5)[i]
            assert one.flops > 0


@pytest.mark.usefixtures("taken")
def test_a_vllm_that_reads_no_files_is_named(monkeypatch):
    inner = sys.modules[f"{LAYERS}.fused_moe.fused_moe"]
    monkeypatch.setattr(inner, "get_default_config", lambda *sizes: {"BLOCK_SIZE_M": 64})
    kernel = vllm_kernels.VllmExperts()
    with pytest.raises(MeasurementError, match="ignores tuned files: unset VLLM_BATCH_INVARIANT"):
        kernel.default(kernel.problem(M=1, E=8, top_k=2, N=64, K=64))


def test_without_vllm_it_says_so(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr(vllm_kernels, "version", missing)
    with pytest.raises(MeasurementError, match=r"vLLM does not run here: .*vllm"):
        _ = vllm_kernels.VllmLinear().source_hash
    with pytest.raises(MeasurementError, match="because vLLM does not run here"):
        vllm_kernels.VllmExperts().default(
            vllm_kernels.VllmExperts().problem(M=1, E=8, top_k=2, N=64, K=64)
        )


@pytest.mark.usefixtures("taken")
def test_another_vllm_is_other_code(monkeypatch):
    before = vllm_kernels.VllmLinear().source_hash
    assert vllm_kernels.VllmLinear().source_hash == before
    monkeypatch.setattr(vllm_kernels, "version", lambda name: "0.34.0")
    assert vllm_kernels.VllmLinear().source_hash != before
