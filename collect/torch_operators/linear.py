"""Linear layers by torch, in every number format that torch supports."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch.nn import functional

from foretune.kernel import Launch
from foretune.values import FrozenParameters

GROUP_SIZE = 128
"""Four-bit weights per scale."""
MIN_ROWS = 32
"""Rows to which integer products are padded: libraries reject fewer."""
DISTINCT_NUMBERS = 2**22 - 3
"""Period of the random numbers in a tensor: drawing gigabytes would take longer than measuring.

It is odd, so that rows differ."""
FLOAT8 = torch.float8_e4m3fn
MAX_VALUE = {FLOAT8: 448.0, torch.int8: 127.0}


@dataclass(frozen=True)
class Linear:
    """A linear layer in one format, whose weight (out, in) was given in 16 or 32 bits.

    Attributes:
        prepare: converts activations in 16 or 32 bits to the operand of ``multiply``; not timed.
        multiply: the product, (rows, out), in 16 bits, or 32 if the format has 32.
    """

    prepare: Callable[[torch.Tensor], Any]
    multiply: Callable[[Any], torch.Tensor]


def _plain(weight: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> Linear:
    """Weights and activations in a format that torch multiplies directly."""
    converted = weight.to(dtype)
    return Linear(lambda a: a.to(dtype), lambda a: functional.linear(a, converted))


def _float8(weight: torch.Tensor) -> Linear:
    """Weights and activations in eight-bit floats with one scale per tensor."""
    narrow, scale = _scaled(weight, FLOAT8)

    def multiply(operand: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch._scaled_mm(
            operand[0], narrow.t(), scale_a=operand[1], scale_b=scale, out_dtype=torch.bfloat16
        )

    return Linear(lambda a: _scaled(a, FLOAT8), multiply)


def _int8(weight: torch.Tensor) -> Linear:
    """Integer weights and activations with one scale per row each."""
    codes, scales = _scaled(weight, torch.int8, dim=1)
    scale = scales.t().to(torch.bfloat16)

    def prepare(activations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, row_scales = _scaled(activations, torch.int8, dim=1)
        missing = max(MIN_ROWS - len(values), 0)
        return functional.pad(values, (0, 0, 0, missing)), row_scales.to(torch.bfloat16)

    def multiply(operand: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        values, row_scales = operand
        sums = torch._int_mm(values, codes.t())[: len(row_scales)]
        return sums.to(torch.bfloat16).mul_(row_scales).mul_(scale)

    return Linear(prepare, multiply)


def _int8_weights(weight: torch.Tensor) -> Linear:
    """Integer weights, converted before every product."""
    codes, scales = _scaled(weight, torch.int8, dim=1)
    scale = scales.to(torch.bfloat16)
    return Linear(
        lambda a: a.to(torch.bfloat16),
        lambda a: functional.linear(a, codes.to(torch.bfloat16).mul_(scale)),
    )


def _int4_weights(weight: torch.Tensor) -> Linear:
    """Two weights per byte, one scale per `GROUP_SIZE`; converted before every product."""
    out, width = weight.shape
    groups = weight.float().reshape(-1, min(GROUP_SIZE, width))
    scale = groups.abs().amax(dim=1, keepdim=True).clamp_min_(1e-12) / 7.0
    numbers = (groups / scale).round_().add_(8.0).to(torch.uint8).reshape(out, width)
    codes = numbers[:, 0::2] | (numbers[:, 1::2] << 4)
    scale = scale.to(torch.bfloat16)

    def multiply(operand: torch.Tensor) -> torch.Tensor:
        halves = torch.stack((codes & 15, codes >> 4), dim=2)
        groups = halves.view(len(scale), -1).to(torch.bfloat16).sub_(8.0).mul_(scale)
        return functional.linear(operand, groups.view(out, -1))

    return Linear(lambda a: a.to(torch.bfloat16), multiply)


FORMATS: dict[str, Callable[[torch.Tensor], Linear]] = {
    "bf16": _plain,
    "fp16": partial(_plain, dtype=torch.float16),
    "fp32": partial(_plain, dtype=torch.float32),
    "fp8": _float8,
    "fp8_static": _float8,
    "int8": _int8,
    "int8_wo": _int8_weights,
    "int4_wo": _int4_weights,
}
"""Format name in the run table -> implementation."""


def cannot_run(problem: FrozenParameters, config: FrozenParameters) -> str:
    """Return why torch does not multiply in this format; empty if it does."""
    kind = str(config["format"])
    if kind not in FORMATS:
        return f"torch multiplies in {', '.join(FORMATS)}, not in {kind}"
    width = int(problem["K"])
    if kind == "int4_wo" and (width % 2 or width % min(GROUP_SIZE, width)):
        return f"{width} weights in a row are not whole groups of {GROUP_SIZE}"
    return ""


def memory_bytes(problem: FrozenParameters, config: FrozenParameters) -> float:
    """Return the bytes of all operands in single precision and in their format."""
    m, n, k = (float(problem[name]) for name in ("M", "N", "K"))
    return 8.0 * (m * k + n * k) + 8.0 * m * n


def build(problem: FrozenParameters, config: FrozenParameters, device: str) -> Launch:
    """Return a call of one product."""
    m, n, k = (int(problem[name]) for name in ("M", "N", "K"))
    linear = FORMATS[str(config["format"])](random_tensor((n, k), device))
    operand = linear.prepare(random_tensor((m, k), device))
    return lambda: linear.multiply(operand)


def random_tensor(shape: tuple[int, ...], device: str) -> torch.Tensor:
    """Return normal random numbers in 16 bits, periodic and the same in every run."""
    generator = torch.Generator(device).manual_seed(0)
    size = prod(shape)
    distinct = min(size, DISTINCT_NUMBERS)
    numbers = torch.randn(distinct, generator=generator, device=device, dtype=torch.bfloat16)
    return numbers.repeat(-(-size // distinct))[:size].view(shape)


def _scaled(
    values: torch.Tensor, dtype: torch.dtype, dim: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``values`` in eight bits and their scale (per row with ``dim`` 1)."""
    wide = values.float()
    largest = wide.abs().amax() if dim is None else wide.abs().amax(dim=dim, keepdim=True)
    scale = largest.clamp_min(1e-12) / MAX_VALUE[dtype]
    scaled = wide / scale
    return (scaled.round_() if dtype is torch.int8 else scaled).to(dtype), scale
