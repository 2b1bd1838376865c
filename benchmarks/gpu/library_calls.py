"""Calls of functions of other people's libraries, with inputs for them."""

from collections.abc import Callable
from typing import Any

import torch
import triton

Outputs = tuple[torch.Tensor, ...]
Sizes = dict[str, int]
Call = Callable[[], Outputs]
"""Calls the library's function, and returns its results."""

CHUNK = 64
"""Tokens of a chunk in the kernels of linear attention."""
TILE_ROWS = 64
"""Rows of a tile in Liger's mixture of experts: the launch's, not a tuned constant."""


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
        numbers = torch.randn(shape, generator=self._generator, device="cuda", dtype=torch.float32)
        return numbers.to(dtype)

    def counts(self, total: int, parts: int) -> list[int]:
        """Return how many of ``total`` go to each part: unequal, none empty, the same each time."""
        weights = [1 + (7 * i) % 5 for i in range(parts)]
        counts = [total * weight // sum(weights) for weight in weights]
        counts[-1] += total - sum(counts)
        return counts

    def integers(self, values: list[int]) -> torch.Tensor:
        """Return 32-bit integers."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)


Prepare = Callable[[Any, Sizes, Inputs], Call]
"""The kernel's module, sizes and a maker of inputs -> a call."""


def prepare_gated_norm(module: Any, sizes: Sizes, inputs: Inputs) -> Call:
    """Prepare FLA's RMS norm with a gate."""
    x = inputs.normal(sizes["T"], sizes["D"])
    gate = inputs.normal(sizes["T"], sizes["D"])
    weight = inputs.normal(sizes["D"])

    def call() -> Outputs:
        y, _, inverse_deviation, _ = module.layer_norm_gated_fwd(
            x, gate, weight, None, is_rms_norm=True
        )
        return y, inverse_deviation

    return call


def prepare_l2norm(module: Any, sizes: Sizes, inputs: Inputs) -> Call:
    """Prepare FLA's L2 norm of rows."""
    x = inputs.normal(sizes["T"], sizes["D"])
    return lambda: module.l2norm_fwd(x)


def prepare_recompute_w_u(module: Any, sizes: Sizes, inputs: Inputs) -> Call:
    """Prepare two factors of FLA's gated delta rule."""
    tokens = (sizes["B"], sizes["T"], sizes["H"])
    keys = inputs.normal(*tokens, sizes["K"])
    values = inputs.normal(*tokens, sizes["V"])
    beta = inputs.normal(*tokens)
    a = inputs.normal(*tokens, CHUNK)
    return lambda: module.recompute_w_u_fwd(keys, values, beta, a)


def prepare_gla_output(module: Any, sizes: Sizes, inputs: Inputs) -> Call:
    """Prepare the output of FLA's gated linear attention."""
    b, t, h, k, v = (sizes[name] for name in "BTHKV")
    queries = inputs.normal(b, t, h, k)
    values = inputs.normal(b, t, h, v)
    gate = -0.1 * inputs.normal(b, t, h, k, dtype=torch.float32).abs()
    scores = inputs.normal(b, t, h, CHUNK)
    states = inputs.normal(b, triton.cdiv(t, CHUNK), h, k, v)
    scale = k**-0.5
    return lambda: (module.chunk_gla_fwd_o_gk(queries, values, gate, scores, states, scale),)


def prepare_dyt(module: Any, sizes: Sizes, inputs: Inputs) -> Call:
    """Prepare Liger's dynamic tanh."""
    x = inputs.normal(sizes["M"], sizes["N"])
    gamma = inputs.normal(sizes["N"])
    beta = inputs.normal(sizes["N"])
    alpha = inputs.normal(1)
    return lambda: (module.liger_dyt_fwd(x, alpha, gamma, beta),)


def prepare_moe_up(module: Any, sizes: Sizes, inputs: Inputs) -> Call:
    """Prepare Liger's first product of a mixture of experts.

    The kernel is launched as Liger's `LigerFusedMoEFunction` does.
    """
    rows = sizes["rows"]
    hidden = sizes["H"]
    inner = sizes["I"]
    experts = sizes["E"]
    x = inputs.normal(rows, hidden)
    weights = inputs.normal(experts, 2 * inner, hidden)
    weights *= hidden**-0.5

    # Rows are sorted by expert, and each expert's rows are cut into tiles.
    expert_starts = [0]
    tile_starts: list[int] = []
    tile_experts: list[int] = []
    for expert, count in enumerate(inputs.counts(rows, experts)):
        start = expert_starts[-1]
        tiles = range(start, start + count, TILE_ROWS)
        tile_starts += tiles
        tile_experts += [expert] * len(tiles)
        expert_starts.append(start + count)

    # 5 has no common divisor with a power of two: every row occurs once.
    order = inputs.integers([(i * 5) % rows for i in range(rows)])
    expert_start = inputs.integers(expert_starts)
    tile_start = inputs.integers(tile_starts)
    tile_expert = inputs.integers(tile_experts)
    before = torch.empty(rows, 2 * inner, dtype=x.dtype, device=x.device)
    after = torch.empty(rows, inner, dtype=x.dtype, device=x.device)

    def grid(meta: dict[str, Any]) -> tuple[int, int]:
        return len(tile_starts), triton.cdiv(inner, meta["BLOCK_N"])

    def call() -> Outputs:
        module._fused_up_proj_swiglu_kernel[grid](
            x,
            weights,
            order,
            expert_start,
            tile_start,
            tile_expert,
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
            BLOCK_M=TILE_ROWS,
        )
        return before, after

    return call


def prepare_gems_rms_norm(module: Any, sizes: Sizes, inputs: Inputs) -> Call:
    """Prepare FlagGems' RMS norm."""
    x = inputs.normal(sizes["M"], sizes["N"])
    weight = inputs.normal(sizes["N"])
    return lambda: module.rms_norm_forward(x, (sizes["N"],), weight)


def prepare_gems_layer_norm(module: Any, sizes: Sizes, inputs: Inputs) -> Call:
    """Prepare FlagGems' layer norm."""
    x = inputs.normal(sizes["M"], sizes["N"])
    weight = inputs.normal(sizes["N"])
    bias = inputs.normal(sizes["N"])
    return lambda: module.layer_norm(x, (sizes["N"],), weight, bias)


def prepare_gems_softmax_backward(module: Any, sizes: Sizes, inputs: Inputs) -> Call:
    """Prepare the gradient of FlagGems' softmax."""
    y = inputs.normal(sizes["M"], sizes["N"])
    gradient = inputs.normal(sizes["M"], sizes["N"])
    if not inputs.replayed:
        y = torch.softmax(y.float(), 1).to(y.dtype)
    return lambda: (module.softmax_backward(gradient, y, 1, y.dtype),)


def prepare_unsloth_forward(module: Any, sizes: Sizes, inputs: Inputs) -> Call:
    """Prepare Unsloth's grouped GEMM.

    The kernel is launched as Unsloth's `grouped_gemm_forward` does with ``autotune=True``.
    """
    x = inputs.normal(sizes["rows"], sizes["K"])
    weights = inputs.normal(sizes["E"] * sizes["N"], sizes["K"])
    weights *= sizes["K"] ** -0.5
    rows_of_expert = inputs.integers(inputs.counts(sizes["rows"], sizes["E"]))
    y = torch.empty(sizes["rows"], sizes["N"], dtype=x.dtype, device=x.device)
    cores = torch.cuda.get_device_properties(0).multi_processor_count

    def call() -> Outputs:
        module._autotuned_grouped_gemm_forward_kernel[lambda meta: (cores,)](
            x_ptr=x,
            w_ptr=weights,
            m_sizes_ptr=rows_of_expert,
            gather_indices_ptr=None,
            topk_weights_ptr=None,
            y_ptr=y,
            NUM_TOKENS=sizes["rows"],
            NUM_EXPERTS=sizes["E"],
            TOPK=1,
            N=sizes["N"],
            K=sizes["K"],
            NUM_SMS=cores,
            PERMUTE_X=False,
            PERMUTE_Y=False,
            FUSE_MUL_POST=False,
            FLATTEN=True,
            enable_fp_fusion=True,
        )
        return (y,)

    return call
