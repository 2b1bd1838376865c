"""Recurrent layers of `breadth.py`: linear attention in chunks, and a selective scan.

Linear attention has a state, the sum of all keys times values so far. One kernel computes the state
before each chunk of tokens; another one the outputs of all chunks at once, each from its state and
its own tokens.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from breadth_kernel import BreadthKernel, Case, launch_options, sizes_of

from foretune.collect.kernels.triton_gemm import multiply_add
from foretune.collect.kernels.triton_kernel import JitLaunch, normal
from foretune.family import Cost
from foretune.kernel import Inputs
from foretune.problem import Problem
from foretune.space import Configuration

CHUNK = 64
"""Tokens of a chunk."""

# Problems: the first two have less than a wave of programs.
SIZES = {"heads": "sequences times heads", "length": "tokens", "width": "of keys and values"}
LAYERS = (
    {"heads": 4, "length": 256, "width": 128},
    {"heads": 8, "length": 128, "width": 128},
    {"heads": 64, "length": 2048, "width": 128},
    {"heads": 128, "length": 1024, "width": 128},
    {"heads": 64, "length": 4096, "width": 128},
)
SMALL = {"heads": 2, "length": 192, "width": 64}


@triton.jit
def _chunk_state(
    k,
    v,
    states,
    length,
    D: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Store the state before each chunk: a tile of the sum of all keys times values so far."""
    # One tile of one head's state: rows are elements of keys, columns of values.
    head = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    t = tl.arange(0, CHUNK)
    chunks = tl.cdiv(length, CHUNK)

    # The state stays in registers along all chunks.
    state = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for chunk in range(0, chunks):
        # Store it before the chunk adds to it.
        at = states + (head * chunks + chunk) * D * D + m[:, None] * D + n[None, :]
        tl.store(at, state.to(states.dtype.element_ty), mask=(m < D)[:, None] & (n < D)[None, :])

        # Keys are loaded transposed: the sum is over tokens. Those after the end are zero.
        token = chunk * CHUNK + t
        row = head * length + token
        of_k = (token < length)[None, :] & (m < D)[:, None]
        of_v = (token < length)[:, None] & (n < D)[None, :]
        keys = tl.load(k + row[None, :] * D + m[:, None], mask=of_k, other=0.0)
        values = tl.load(v + row[:, None] * D + n[None, :], mask=of_v, other=0.0)
        state = multiply_add(keys, values, state)


@triton.jit
def _chunk_output(
    q,
    k,
    v,
    states,
    out,
    length,
    scale,
    D: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Multiply the queries of a chunk by the state before it, and by its own keys and values."""
    # Some columns of the output of one chunk of one head.
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    chunk = tl.program_id(1)
    head = tl.program_id(2).to(tl.int64)
    t = tl.arange(0, CHUNK)
    token = chunk * CHUNK + t
    row = head * length + token
    inside = token < length
    state = states + (head * tl.cdiv(length, CHUNK) + chunk) * D * D

    # One walk along the width of a head has both products of the queries: with the state, and with
    # the chunk's own keys.
    total = tl.zeros((CHUNK, BLOCK_N), tl.float32)
    scores = tl.zeros((CHUNK, CHUNK), tl.float32)
    for start in range(0, D, BLOCK_K):
        d = start + tl.arange(0, BLOCK_K)
        queries = tl.load(q + row[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        keys = tl.load(k + row[None, :] * D + d[:, None], mask=inside[None, :], other=0.0)
        before = tl.load(state + d[:, None] * D + n[None, :])
        total = multiply_add(queries, before, total)
        scores = multiply_add(queries, keys, scores)

    # Within the chunk, a query sees no key after itself. The scale keeps the scores within the
    # range of 16 bits.
    scores = tl.where(t[:, None] >= t[None, :], scores, 0.0)
    values = tl.load(v + row[:, None] * D + n[None, :], mask=inside[:, None], other=0.0)
    own = multiply_add(
        (scores * scale).to(values.dtype), values, tl.zeros((CHUNK, BLOCK_N), tl.float32)
    )

    result = (total * scale + own).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * D + n[None, :], result, mask=inside[:, None])


@triton.jit
def _selective_scan(
    x,
    step,
    decay,
    b,
    c,
    y,
    length,
    channels,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Walk along the tokens of some channels, with ``N`` states each."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sequence = tl.program_id(1).to(tl.int64)
    n = tl.arange(0, N)
    mine = channel < channels

    # Rates of decay do not depend on the token. They and the states stay in registers.
    rate = tl.load(decay + channel[:, None] * N + n[None, :], mask=mine[:, None], other=0.0)
    state = tl.zeros((BLOCK, N), tl.float32)
    for t in tl.range(0, length, num_stages=STAGES):
        # Of each channel: the step and the value. Of each state: what enters and leaves it.
        token = sequence * length + t
        at = token * channels + channel
        dt = tl.load(step + at, mask=mine, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=mine, other=0.0).to(tl.float32)
        into = tl.load(b + token * N + n).to(tl.float32)
        out_of = tl.load(c + token * N + n).to(tl.float32)

        # The states decay and take up the value; the output is their sum, weighted.
        state = tl.exp(dt[:, None] * rate) * state + (dt * value)[:, None] * into[None, :]
        result = tl.sum(state * out_of[None, :], axis=1)
        tl.store(y + at, result.to(y.dtype.element_ty), mask=mine)


class ChunkState(BreadthKernel):
    """The states of linear attention before each chunk of tokens."""

    name = "triton_chunk_state"
    tolerance = 5e-3
    sizes = SIZES
    tiles: ClassVar = {"BLOCK_M": (32, 64, 128), "BLOCK_N": (32, 64, 128)}
    usual: ClassVar = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return keys and values, standard normal."""
        shape = tuple(sizes_of(problem, "heads", "length", "width"))
        return {
            "k": normal(shape, "fp16", self, 2 * seed),
            "v": normal(shape, "fp16", self, 2 * seed + 1),
        }

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and the states."""
        heads, length, width = sizes_of(problem, "heads", "length", "width")
        k = inputs["k"]
        v = inputs["v"]
        chunks = triton.cdiv(length, CHUNK)
        states = torch.empty((heads, chunks, width, width), dtype=k.dtype, device=k.device)

        tiles_m = triton.cdiv(width, int(config["BLOCK_M"]))
        tiles_n = triton.cdiv(width, int(config["BLOCK_N"]))
        grid = (tiles_m, tiles_n, heads)
        options = {**config, "D": width, "CHUNK": CHUNK}
        return [JitLaunch(_chunk_state, grid, (k, v, states, length), options)], states

    def reference(self, inputs: Inputs) -> Any:
        """Return the states in single precision: cumulative sums of products of chunks."""
        keys = _in_chunks(inputs["k"].float())
        values = _in_chunks(inputs["v"].float())
        products = keys.transpose(2, 3) @ values

        # The state before a chunk lacks the chunk's own product.
        return products.cumsum(1) - products

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return the products of all tokens, and all tensors moved once."""
        heads, length, width = (1.0 * problem[name] for name in ("heads", "length", "width"))
        operations = 2.0 * heads * length * width * width
        states = heads * length / CHUNK * width * width
        moved_elements = 2.0 * heads * length * width + states
        return Cost(operations, 2.0 * moved_elements, "fp16")


class ChunkOutput(BreadthKernel):
    """The output of linear attention, given the states before each chunk."""

    name = "triton_chunk_output"
    tolerance = 5e-3
    sizes = SIZES
    tiles: ClassVar = {"BLOCK_K": (32, 64), "BLOCK_N": (32, 64)}
    usual: ClassVar = {"BLOCK_K": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return queries, keys, values and states, standard normal."""
        heads, length, width = sizes_of(problem, "heads", "length", "width")
        shape = (heads, length, width)
        shape_of_states = (heads, triton.cdiv(length, CHUNK), width, width)
        return {
            "q": normal(shape, "fp16", self, 4 * seed),
            "k": normal(shape, "fp16", self, 4 * seed + 1),
            "v": normal(shape, "fp16", self, 4 * seed + 2),
            "states": normal(shape_of_states, "fp16", self, 4 * seed + 3),
        }

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and the output."""
        heads, length, width = sizes_of(problem, "heads", "length", "width")
        q, k, v, states = (inputs[name] for name in ("q", "k", "v", "states"))
        out = torch.empty_like(q)

        tiles_n = triton.cdiv(width, int(config["BLOCK_N"]))
        grid = (tiles_n, triton.cdiv(length, CHUNK), heads)
        arguments = (q, k, v, states, out, length, 1.0 / math.sqrt(width))
        options = {**config, "D": width, "CHUNK": CHUNK}
        return [JitLaunch(_chunk_output, grid, arguments, options)], out

    def reference(self, inputs: Inputs) -> Any:
        """Return the output in single precision."""
        queries, keys, values = (_in_chunks(inputs[name].float()) for name in "qkv")

        # What a query sees of its own chunk, and of all chunks before it.
        own = torch.tril(queries @ keys.transpose(2, 3)) @ values
        total = queries @ inputs["states"].float() + own

        # Without the tokens that fill up the last chunk.
        heads, length, width = inputs["q"].shape
        return total.reshape(heads, -1, width)[:, :length] / math.sqrt(width)

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return the products of all tokens, and all tensors moved once."""
        heads, length, width = (1.0 * problem[name] for name in ("heads", "length", "width"))
        operations = 2.0 * heads * length * width * (width + 2.0 * CHUNK)
        states = heads * length / CHUNK * width * width
        moved_elements = 4.0 * heads * length * width + states
        return Cost(operations, 2.0 * moved_elements, "fp16")


class SelectiveScan(BreadthKernel):
    """``h = exp(Δ A) h + Δ B x``, ``y = C h``, token after token (Gu and Dao, arXiv:2312.00752)."""

    name = "triton_selective_scan"
    tolerance = 5e-3
    sizes: ClassVar = {
        "sequences": "sequences",
        "length": "tokens",
        "channels": "channels",
        "states": "states of a channel",
    }
    tiles: ClassVar = {"BLOCK": (16, 32, 64, 128)}
    usual: ClassVar = {"BLOCK": 64, "num_warps": 4, "num_stages": 2}

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return X, B and C, standard normal, positive steps and negative decays."""
        names = ("sequences", "length", "channels", "states")
        sequences, length, channels, states = sizes_of(problem, *names)
        steps = normal((sequences, length, channels), "fp16", self, 5 * seed + 1)
        decays = normal((channels, states), "fp32", self, 5 * seed + 2)
        return {
            "x": normal((sequences, length, channels), "fp16", self, 5 * seed),
            "step": steps.abs_().mul_(0.1),
            "decay": -decays.exp_(),
            "b": normal((sequences, length, states), "fp16", self, 5 * seed + 3),
            "c": normal((sequences, length, states), "fp16", self, 5 * seed + 4),
        }

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and Y."""
        sequences, length, channels = sizes_of(problem, "sequences", "length", "channels")
        x = inputs["x"]
        y = torch.empty_like(x)
        grid = (triton.cdiv(channels, int(config["BLOCK"])), sequences)
        step, decay, b, c = (inputs[name] for name in ("step", "decay", "b", "c"))
        arguments = (x, step, decay, b, c, y, length, channels)
        options = {**launch_options(config), "N": int(problem["states"])}
        return [JitLaunch(_selective_scan, grid, arguments, options)], y

    def reference(self, inputs: Inputs) -> Any:
        """Return Y in single precision, token after token."""
        x, step, b, c = (inputs[name].float() for name in ("x", "step", "b", "c"))
        state = torch.zeros((*x.shape[::2], b.shape[2]), device=x.device)
        y = torch.empty_like(x)
        for t in range(x.shape[1]):
            kept = torch.exp(step[:, t, :, None] * inputs["decay"])
            added = (step[:, t] * x[:, t])[:, :, None] * b[:, t, None, :]
            state = kept * state + added
            y[:, t] = (state * c[:, t, None, :]).sum(2)
        return y

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return seven operations per state and token, and all tensors moved once."""
        names = ("sequences", "length", "channels", "states")
        sequences, length, channels, states = (1.0 * problem[name] for name in names)
        tokens = sequences * length
        operations = 7.0 * tokens * channels * states

        # X, steps and Y of each channel, B and C of each state, in 16 bits; decays in 32.
        moved_bytes = 2.0 * tokens * (3.0 * channels + 2.0 * states) + 4.0 * channels * states
        return Cost(operations, moved_bytes)


def _in_chunks(x: torch.Tensor) -> torch.Tensor:
    """Return (heads, tokens, width) as (heads, chunks, tokens, width), padded by zeros."""
    heads, length, width = x.shape
    padded = torch.nn.functional.pad(x, (0, 0, 0, -length % CHUNK))
    return padded.reshape(heads, -1, CHUNK, width)


def cases() -> list[Case]:
    """Return the cases of this file."""
    return [
        ChunkState().case("linear attention, states", LAYERS, SMALL),
        ChunkOutput().case("linear attention, output", LAYERS, SMALL),
        SelectiveScan().case(
            "selective scan",
            (
                {"sequences": 1, "length": 256, "channels": 2048, "states": 16},
                {"sequences": 2, "length": 128, "channels": 4096, "states": 16},
                {"sequences": 16, "length": 512, "channels": 2048, "states": 16},
                {"sequences": 8, "length": 1024, "channels": 4096, "states": 16},
                {"sequences": 64, "length": 256, "channels": 1536, "states": 16},
            ),
            {"sequences": 2, "length": 20, "channels": 48, "states": 16},
        ),
    ]
