"""Matrix product with quantized weights in Triton: ``C = A @ dequantized(W)``, fused.

Weights have 4 or 8 bits, and a scale (and a zero point) per group along K. They are unpacked and
scaled on their way to the matrix units. So a decoding batch of few tokens reads only a quarter or
half of the bytes.

Packed 4-bit weights keep the first half of a group in the low bits and the second half in the high
bits of the same bytes. A tile of bytes is then two tiles of weights. Each is multiplied with
contiguous columns of A, so nothing has to be interleaved.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from foretune.collect.kernels.triton_gemm import (
    WORKSPACE_BYTES,
    Limits,
    TiledProduct,
    default_tile,
    device_limits,
    group_reuse,
    multiply_add,
    padding,
    shape_rules,
    split_rules,
    split_sum_launches,
    tile_features,
    tile_position,
    tile_rules,
)
from foretune.collect.kernels.triton_kernel import (
    CACHE,
    JitLaunch,
    check_support,
    normal,
    seeded,
    torch_device,
    torch_dtype,
)
from foretune.family import Cost, Quantity
from foretune.kernel import Inputs, Launch, latin_hypercube_problems
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace

# One decoding sequence to a short prompt; layers of models with 1 to 70 billion parameters; and
# sizes that no tile or group divides.
TRAINING = {
    "M": (1, 2, 4, 8, 16, 31, 64, 128, 256, 500, 1024),
    "N": (1000, 2048, 4096, 5120, 6144, 8192, 11008, 14336, 28672),
    "K": (1000, 2048, 3584, 4096, 5120, 8192, 11008, 14336, 28672),
    "bits": (4, 4, 4, 8),
    "group": (32, 64, 128, 128),
    "zeros": ("none", "none", "group"),
    "dtype": ("fp16", "bf16"),
}


@triton.jit
def _dequantized(codes, scale, zero):
    """Return the weights of ``codes`` in the format of ``scale``."""
    # most units compute fp16 at twice the rate of fp32, but not bf16
    WIDE: tl.constexpr = tl.float16 if scale.dtype == tl.float16 else tl.float32
    numbers = (codes.to(WIDE) - zero.to(WIDE)) * scale.to(WIDE)
    return numbers.to(scale.dtype)


@triton.jit
def _of_groups(at, N, rows, STEP: tl.constexpr, SHARED: tl.constexpr):
    """Return the scales or zero points at ``at`` for STEP packed rows.

    ``SHARED`` rows have the same value; only ``rows`` of them exist.
    """
    if STEP <= SHARED:
        return tl.load(at)[None, :]
    else:
        GROUPS: tl.constexpr = STEP // SHARED
        groups = tl.arange(0, GROUPS)[:, None]
        held = tl.load(at[None, :] + groups * N, mask=groups * SHARED < rows, other=0.0)
        repeated = tl.broadcast_to(held[:, None, :], (GROUPS, SHARED, at.shape[0]))
        return repeated.reshape(STEP, at.shape[0])


@triton.jit
def _columns(at, k, K, EVEN_K: tl.constexpr):
    """Return columns ``k`` of A; zeros beyond the last."""
    return tl.load(at) if EVEN_K else tl.load(at, mask=k[None, :] < K, other=0.0)


@triton.jit
def _quantized_gemm(
    a,
    w,
    scales,
    zeros,
    c,
    M,
    N,
    K,
    stride_wk,
    stride_wn,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    ZEROS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """Multiply: programs are numbered along the tiles of C (0) and the parts of the sums (1)."""
    # packed rows per step, and packed rows that share a scale
    STEP: tl.constexpr = BLOCK_K * BITS // 8
    SHARED: tl.constexpr = GROUP * BITS // 8
    packed_rows = tl.cdiv(K, GROUP) * SHARED
    pid_m, pid_n = tile_position(
        tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M
    )
    split = tl.program_id(1)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = columns % N  # loads past the end wrap around; the store is masked
    a_rows = a + (rows % M)[:, None] * K
    ks = tl.arange(0, STEP)
    w_at = w + ks[:, None] * stride_wk + inner[None, :] * stride_wn
    share = tl.cdiv(tl.cdiv(packed_rows, STEP), SPLIT_K) * STEP
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for p in range(split * share, min(split * share + share, packed_rows), STEP):
        group = p // SHARED
        if STEP <= SHARED:  # a step stays within one group
            k = group * GROUP + p % SHARED + ks
            codes = tl.load(w_at + p * stride_wk)
        else:
            k = (group + ks // SHARED) * GROUP + ks % SHARED
            codes = tl.load(w_at + p * stride_wk, mask=ks[:, None] < packed_rows - p, other=0)
        scale = _of_groups(scales + group * N + inner, N, packed_rows - p, STEP, SHARED)
        if ZEROS:
            zero = _of_groups(zeros + group * N + inner, N, packed_rows - p, STEP, SHARED)
        else:
            zero = tl.full((1, 1), 2 ** (BITS - 1), a.dtype.element_ty)
        a_at = a_rows + k[None, :]
        x = _columns(a_at, k, K, EVEN_K)
        if BITS == 4:
            x_high = _columns(a_at + SHARED, k + SHARED, K, EVEN_K)
            total = multiply_add(x, _dequantized(codes & 0xF, scale, zero), total)
            total = multiply_add(x_high, _dequantized(codes >> 4, scale, zero), total)
        else:
            total = multiply_add(x, _dequantized(codes, scale, zero), total)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    c += split * M * N  # parts are stored one after the other
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


class TritonQuantizedGemm(TiledProduct):
    """``C[M, N] = A[M, K] @ W[K, N]``, W stored in 4 or 8 bits with a scale per group along K.

    A weight is ``(code − zero) · scale``. Without zero points, ``zero`` is the middle code.

    Knobs: the tile of a program (``BLOCK_M`` × ``BLOCK_N``, ``BLOCK_K`` weights at a time), rows of
    tiles in a group (``GROUP_M``), programs that share a tile's sums (``SPLIT_K``), the axis along
    which packed weights are contiguous (``ORDER``), warps of a program, and steps in flight
    (``num_stages``).
    """

    name = "triton_quantized_gemm"
    problem_parameters = (
        ProblemParameter("M", meaning="rows of A and C: tokens"),
        ProblemParameter("N", meaning="columns of W and C"),
        ProblemParameter("K", meaning="columns of A, rows of W"),
        ProblemParameter("bits", 4, choices=(4, 8), meaning="bits per weight"),
        ProblemParameter("group", 128, choices=(32, 64, 128), meaning="weights that share a scale"),
        ProblemParameter(
            "zeros", "none", choices=("none", "group"), meaning="whether groups have zero points"
        ),
        ProblemParameter("dtype", "fp16", choices=("fp16", "bf16"), meaning="of A, C and scales"),
        CACHE,
    )

    def space(self, problem: Problem) -> SearchSpace:
        """Return tiles that fit the current device, and how programs share the work."""
        sizes = (int(problem[p]) for p in (*"MNK", "bits", "group"))
        return _space(*sizes, device_limits())

    def default(self, problem: Problem) -> Configuration:
        """Return a tile of at most 128 × 128, three steps in flight, no split."""
        m, n, k = (int(problem[p]) for p in "MNK")
        return Configuration(default_tile(m, n, k, 64), SPLIT_K=1, ORDER="n")

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return A, standard normal, and W: one code per byte, scales and zero points."""
        m, n, k = (int(problem[p]) for p in "MNK")
        bits, dtype = int(problem["bits"]), str(problem["dtype"])
        check_support(dtype)
        device = torch_device(self)
        generator = seeded(device, 2 * seed + 1)
        levels, groups = 2**bits, -(-k // int(problem["group"]))

        def uniform(low: float, high: float, rows: int) -> Any:
            numbers = torch.rand((rows, n), generator=generator, device=device)
            return numbers.mul_(high - low).add_(low)

        codes = uniform(0, levels, k).to(torch.uint8)
        scales = uniform(0.5, 1.5, groups).div_(levels)
        inputs = {
            "a": normal((m, k), dtype, self, 2 * seed),
            "codes": codes,
            "scales": scales.to(torch_dtype(dtype)),
            "bits": bits,
            "group": int(problem["group"]),
        }
        if problem["zeros"] == "group":
            zeros = uniform(0.4 * levels, 0.6 * levels, groups).round_()
            inputs["zeros"] = zeros.to(torch_dtype(dtype))
        return inputs

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Pack W, untimed; return the launches that multiply and add split sums, and C."""
        a, scales = inputs["a"], inputs["scales"]
        (m, k), n = a.shape, scales.shape[1]
        bits, group = int(problem["bits"]), int(problem["group"])
        w = packed(inputs["codes"], bits, group)
        if config["ORDER"] == "k":
            w = w.t().contiguous().t()
        splits, block_k = int(config["SPLIT_K"]), int(config["BLOCK_K"])
        c = torch.empty((m, n), dtype=a.dtype, device=a.device)
        out = c
        if splits > 1:
            out = torch.empty((splits, m, n), dtype=torch.float32, device=a.device)
        tiles = triton.cdiv(m, int(config["BLOCK_M"])) * triton.cdiv(n, int(config["BLOCK_N"]))

        arguments = (a, w, scales, inputs.get("zeros"), out, m, n, k, *w.stride())
        options = {name: value for name, value in config.items() if name != "ORDER"}
        options |= {"GROUP": group, "BITS": bits, "ZEROS": "zeros" in inputs}
        options["EVEN_K"] = k % max(group, block_k) == 0
        product = JitLaunch(_quantized_gemm, (tiles, splits), arguments, options)
        return [product, *split_sum_launches(out, c)], c

    def reference(self, inputs: Inputs) -> Any:
        """Return the product with the dequantized weights in single precision."""
        return inputs["a"].float() @ _weights(inputs, torch.float32)

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return dequantization of W and the product, both in torch."""
        a, dtype = inputs["a"], inputs["a"].dtype
        return "torch dequantize + matmul", lambda: a @ _weights(inputs, dtype)

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 2·M·N·K operations, and the bytes of A, C, packed weights, scales and zeros."""
        m, n, k = (1.0 * problem[p] for p in "MNK")
        return Cost(
            flops=2.0 * m * n * k,
            bytes_moved=_weight_bytes(problem) + 2.0 * (m * k + m * n),
            dtype=problem["dtype"],
        )

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return features of the tile, padding, waves, unpacking, and splitting.

        ``unpacked`` counts how often each weight is unpacked: once per row of tiles.
        """
        m, n, k = (1.0 * problem[p] for p in "MNK")
        tile_m, tile_n, tile_k = (1.0 * config[f"BLOCK_{p}"] for p in "MNK")
        splits, bytes_n = 1.0 * config["SPLIT_K"], problem["bits"] / 8.0
        tiles = np.ceil(m / tile_m) * np.ceil(n / tile_n)
        steps = np.ceil(np.ceil(k / tile_k) / splits)
        return {
            "log2_a": np.log2(m * k),
            "log2_w": np.log2(_weight_bytes(problem)),
            "log2_c": np.log2(m * n),
            "padding": padding(m, tile_m) * padding(n, tile_n),
            "padding_k": k / (steps * tile_k * splits),
            "step_bytes": tile_k * (2.0 * tile_m + bytes_n * tile_n),
            "buffer_bytes": tile_k * (2.0 * tile_m + bytes_n * tile_n) * config["num_stages"],
            "split_bytes": np.where(splits > 1, 8.0 * splits * m * n, 0.0),
            "unpacked": np.ceil(m / tile_m),
            "work_per_code": tile_m / bytes_n,
            "groups_per_step": tile_k / problem["group"],
            "run_bytes": bytes_n * np.where(np.equal(config["ORDER"], "k"), tile_k, tile_n),
            "shared_by": group_reuse(config, np.ceil(m / tile_m), tiles * splits, device),
            **tile_features(config, tiles * splits, steps, device),
        }

    def memory_bytes(self, problem: Problem) -> float:
        """Return the bytes of the matrices, the reference's copies, and split sums."""
        m, n, k = (float(problem[p]) for p in "MNK")
        return 12.0 * k * n + 6.0 * m * k + 6.0 * m * n + min(64.0 * m * n, WORKSPACE_BYTES)

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return layers of language models, from one token to a short prompt, and odd sizes."""
        return latin_hypercube_problems(self, TRAINING, n, seed)


def packed(codes: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """Pack codes of shape (K, N), one per byte, to (padded K · bits / 8, N).

    K is padded to whole groups.
    """
    k, n = codes.shape
    padded = torch.nn.functional.pad(codes, (0, 0, 0, -k % group))
    if bits == 8:
        return padded.contiguous()
    halves = padded.view(-1, 2, group // 2, n)
    return (halves[:, 0] | halves[:, 1] << 4).reshape(-1, n)


def _weights(inputs: Inputs, dtype: torch.dtype) -> torch.Tensor:
    """Return the dequantized weights in ``dtype``."""
    codes, group = inputs["codes"].to(dtype), int(inputs["group"])

    def each(of_groups: torch.Tensor) -> torch.Tensor:
        return of_groups.to(dtype).repeat_interleave(group, 0)[: len(codes)]

    middle = 2.0 ** (int(inputs["bits"]) - 1)
    zeros = each(inputs["zeros"]) if "zeros" in inputs else middle
    return codes.sub_(zeros).mul_(each(inputs["scales"]))


def _weight_bytes(problem: Mapping[str, Any]) -> Quantity:
    """Return the bytes of packed weights, and of their scales and zero points."""
    n, k = 1.0 * problem["N"], 1.0 * problem["K"]
    per_group = np.where(np.equal(problem["zeros"], "group"), 4.0, 2.0)
    return n * (k * problem["bits"] / 8.0 + np.ceil(k / problem["group"]) * per_group)


@lru_cache(maxsize=32)
def _space(m: int, n: int, k: int, bits: int, group: int, limits: Limits) -> SearchSpace:
    return SearchSpace(
        {
            "BLOCK_M": (16, 32, 64, 128, 256),
            "BLOCK_N": (32, 64, 128, 256),
            "BLOCK_K": (32, 64, 128, 256),
            "GROUP_M": (1, 2, 4, 8),
            "SPLIT_K": (1, 2, 4, 8, 16),
            "ORDER": ("n", "k"),
            "num_warps": (2, 4, 8),
            "num_stages": (1, 2, 3, 4, 5),
        },
        [
            *tile_rules(limits, 2, bits / 8 + 4 / group, bytes_unpacked=bits / 4),
            *shape_rules(m, n, k),
            *split_rules(m, n, k),
        ],
    )
