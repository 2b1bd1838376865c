"""What `libraries.py` calls: functions of other people's libraries, and inputs for them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton

Outputs = tuple[torch.Tensor, ...]
Sizes = dict[str, int]


@dataclass(frozen=True)
class Case:
    """A kernel of a library.

    Attributes:
        library: its name.
        module: where the kernel is.
        kernel: the decorated kernel's name there.
        problems: sizes, in the order in which they are met.
        prepare: from the kernel's module, sizes and a maker of inputs to a call of the library's
            function, which returns its results.
    """

    library: str
    module: str
    kernel: str
    problems: list[Sizes]
    prepare: Callable[[Any, Sizes, "Inputs"], Callable[[], Outputs]]


class Inputs:
    """Makes inputs: by seed on a GPU, and without contents where nothing is launched."""

    def __init__(self, replayed: bool) -> None:
        self.replayed = replayed
        self.device = "cpu" if replayed else "cuda"
        self._generator = None if replayed else torch.Generator("cuda").manual_seed(0)

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Return standard normal numbers."""
        if self.replayed:
            return torch.empty(shape, dtype=dtype)
        made = torch.randn(shape, generator=self._generator, device="cuda", dtype=torch.float32)
        return made.to(dtype)

    def counts(self, total: int, parts: int) -> list[int]:
        """Return how many of ``total`` go to each part: unequal, none empty, the same each time."""
        weights = [1 + (7 * i) % 5 for i in range(parts)]
        counts = [total * w // sum(weights) for w in weights]
        counts[-1] += total - sum(counts)
        return counts

    def integers(self, values: list[int]) -> torch.Tensor:
        """Return 32-bit integers."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)


def _gated_norm(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    x = inputs.normal(p["T"], p["D"])
    gate = inputs.normal(p["T"], p["D"])
    weight = inputs.normal(p["D"])

    def call() -> Outputs:
        y, _, rstd, _ = module.layer_norm_gated_fwd(x, gate, weight, None, is_rms_norm=True)
        return y, rstd

    return call


def _l2norm(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    x = inputs.normal(p["T"], p["D"])
    return lambda: module.l2norm_fwd(x)


def _recompute_w_u(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    size = (p["B"], p["T"], p["H"])
    k = inputs.normal(*size, p["K"])
    v = inputs.normal(*size, p["V"])
    beta = inputs.normal(*size)
    a = inputs.normal(*size, 64)
    return lambda: module.recompute_w_u_fwd(k, v, beta, a)


def _gla_output(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    b, t, h, k, v = (p[name] for name in "BTHKV")
    q = inputs.normal(b, t, h, k)
    values = inputs.normal(b, t, h, v)
    gate = -0.1 * inputs.normal(b, t, h, k, dtype=torch.float32).abs()
    scores = inputs.normal(b, t, h, 64)
    states = inputs.normal(b, triton.cdiv(t, 64), h, k, v)
    scale = k**-0.5
    return lambda: (module.chunk_gla_fwd_o_gk(q, values, gate, scores, states, scale),)


def _dyt(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    x = inputs.normal(p["M"], p["N"])
    gamma = inputs.normal(p["N"])
    beta = inputs.normal(p["N"])
    alpha = inputs.normal(1)
    return lambda: (module.liger_dyt_fwd(x, alpha, gamma, beta),)


def _moe_up(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    """Launch Liger's first product of a mixture of experts, as its `LigerFusedMoEFunction` does."""
    rows = p["rows"]
    hidden = p["H"]
    inner = p["I"]
    experts = p["E"]
    edge = 64
    x = inputs.normal(rows, hidden)
    weights = inputs.normal(experts, 2 * inner, hidden)
    weights *= hidden**-0.5
    starts = [0]
    owners = list[int]()
    tiles = list[int]()
    for expert, count in enumerate(inputs.counts(rows, experts)):
        first = range(starts[-1], starts[-1] + count, edge)
        tiles += first
        owners += [expert] * len(first)
        starts.append(starts[-1] + count)
    order = inputs.integers([(i * 5) % rows for i in range(rows)])  # 5 and a power of two: all
    start, tile, owner = map(inputs.integers, (starts, tiles, owners))
    before = torch.empty(rows, 2 * inner, dtype=x.dtype, device=x.device)
    after = torch.empty(rows, inner, dtype=x.dtype, device=x.device)

    def call() -> Outputs:
        module._fused_up_proj_swiglu_kernel[
            lambda meta: (len(tiles), triton.cdiv(inner, meta["BLOCK_N"]))
        ](
            x,
            weights,
            order,
            start,
            tile,
            owner,
            before,
            after,
            H_dim=hidden,
            I_dim=inner,
            stride_x_T=x.stride(0),
            stride_x_H=x.stride(1),
            stride_w_E=weights.stride(0),
            stride_w_N=weights.stride(1),
            stride_w_K=weights.stride(2),
            stride_pre_TK=before.stride(0),
            stride_pre_N=before.stride(1),
            stride_post_TK=after.stride(0),
            stride_post_N=after.stride(1),
            BLOCK_M=edge,
        )
        return before, after

    return call


def _gems_rms_norm(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    x = inputs.normal(p["M"], p["N"])
    weight = inputs.normal(p["N"])
    return lambda: module.rms_norm_forward(x, (p["N"],), weight)


def _gems_layer_norm(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    x = inputs.normal(p["M"], p["N"])
    weight = inputs.normal(p["N"])
    bias = inputs.normal(p["N"])
    return lambda: module.layer_norm(x, (p["N"],), weight, bias)


def _gems_softmax_backward(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    y = inputs.normal(p["M"], p["N"])
    gradient = inputs.normal(p["M"], p["N"])
    if not inputs.replayed:
        y = torch.softmax(y.float(), 1).to(y.dtype)
    return lambda: (module.softmax_backward(gradient, y, 1, y.dtype),)


def _unsloth_forward(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    """Launch Unsloth's grouped GEMM as its `grouped_gemm_forward` does with ``autotune=True``."""
    x = inputs.normal(p["rows"], p["K"])
    weights = inputs.normal(p["E"] * p["N"], p["K"])
    weights *= p["K"] ** -0.5
    sizes = inputs.integers(inputs.counts(p["rows"], p["E"]))
    y = torch.empty(p["rows"], p["N"], dtype=x.dtype, device=x.device)
    cores = torch.cuda.get_device_properties(0).multi_processor_count

    def call() -> Outputs:
        module._autotuned_grouped_gemm_forward_kernel[lambda meta: (cores,)](
            x_ptr=x,
            w_ptr=weights,
            m_sizes_ptr=sizes,
            gather_indices_ptr=None,
            topk_weights_ptr=None,
            y_ptr=y,
            NUM_TOKENS=p["rows"],
            NUM_EXPERTS=p["E"],
            TOPK=1,
            N=p["N"],
            K=p["K"],
            NUM_SMS=cores,
            PERMUTE_X=False,
            PERMUTE_Y=False,
            FUSE_MUL_POST=False,
            FLATTEN=True,
            enable_fp_fusion=True,
        )
        return (y,)

    return call


CASES = [
    Case(
        "fla",
        "fla.modules.norm.fused_norm_gate",
        "layer_norm_gated_fwd_kernel",
        [{"T": 65536, "D": 128}, {"T": 32768, "D": 256}, {"T": 65536, "D": 64}],
        _gated_norm,
    ),
    Case(
        "liger",
        "liger_kernel.ops.dyt",
        "_dyt_fwd_kernel",
        [{"M": 4096, "N": 4096}, {"M": 4096, "N": 8192}],
        _dyt,
    ),
    Case(
        "flag_gems",
        "flag_gems.ops.rms_norm",
        "rms_norm_loop_kernel",
        [{"M": 4096, "N": 8192}, {"M": 2048, "N": 5120}],
        _gems_rms_norm,
    ),
    Case(
        "fla",
        "fla.ops.gated_delta_rule.wy_fast",
        "recompute_w_u_fwd_kernel",
        [
            {"B": 2, "T": 4096, "H": 16, "K": 128, "V": 128},
            {"B": 2, "T": 4096, "H": 8, "K": 128, "V": 256},
            {"B": 2, "T": 4096, "H": 16, "K": 64, "V": 64},
        ],
        _recompute_w_u,
    ),
    Case(
        "flag_gems",
        "flag_gems.ops.softmax",
        "softmax_backward_kernel_inner",
        [{"M": 4096, "N": 2048}, {"M": 2048, "N": 8192}, {"M": 16384, "N": 1024}],
        _gems_softmax_backward,
    ),
    Case(
        "liger",
        "liger_kernel.ops.fused_moe_kernels",
        "_fused_up_proj_swiglu_kernel",
        [
            {"rows": 2048, "H": 2048, "I": 1024, "E": 8},
            {"rows": 4096, "H": 1024, "I": 2048, "E": 16},
        ],
        _moe_up,
    ),
    Case(
        "unsloth",
        "unsloth.kernels.moe.grouped_gemm.interface",
        "_autotuned_grouped_gemm_forward_kernel",
        [{"rows": 4096, "K": 2048, "N": 1536, "E": 8}],
        _unsloth_forward,
    ),
    Case(
        "fla",
        "fla.ops.gla.chunk",
        "chunk_gla_fwd_kernel_o",
        [
            {"B": 2, "T": 4096, "H": 8, "K": 128, "V": 256},
            {"B": 4, "T": 2048, "H": 16, "K": 64, "V": 128},
        ],
        _gla_output,
    ),
    Case(
        "flag_gems",
        "flag_gems.ops.layernorm",
        "layer_norm_loop_kernel",
        [{"M": 4096, "N": 8192}, {"M": 2048, "N": 12288}],
        _gems_layer_norm,
    ),
    Case(
        "fla",
        "fla.modules.norm.l2norm",
        "l2norm_fwd_kernel",
        [{"T": 65536, "D": 128}, {"T": 65536, "D": 64}],
        _l2norm,
    ),
]
"""In this order, so that an early stop leaves something of each library."""
LIBRARIES = ("fla", "liger", "flag_gems", "unsloth")
