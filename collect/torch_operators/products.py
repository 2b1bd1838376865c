"""Linear layers in every number format that torch supports."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from foretune.collect.torch_operators.tensors import FLOAT8, MIN_LARGEST, random_tensor, scaled
from foretune.kernel import Launch
from foretune.values import FrozenParameters

MAX_BYTES_PER_NUMBER = 8.0
"""Memory of a number, in 32 bits and in its format."""
GROUP_SIZE = 128
"""Four-bit weights per scale."""
MIN_ROWS = 32
"""Rows to which integer products are padded: libraries reject fewer."""
INT4_MAX = 7.0
"""Largest four-bit weight."""
INT4_OFFSET = 8.0
"""Added to four-bit weights, so that they are stored without a sign."""


@dataclass(frozen=True)
class Linear:
    """A linear layer in one format, whose weight (out, in) was given in 16 or 32 bits."""

    prepare: Callable[[torch.Tensor], Any]
    """Activations -> the operand of `multiply`; not timed."""
    multiply: Callable[[Any], torch.Tensor]
    """Operand -> (rows, out), in 16 bits, or 32 if the format has 32."""


def _plain(weight: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> Linear:
    """Weights and activations in a format that torch multiplies directly."""
    converted = weight.to(dtype)

    def prepare(activations: torch.Tensor) -> torch.Tensor:
        return activations.to(dtype)

    def multiply(operand: torch.Tensor) -> torch.Tensor:
        return functional.linear(operand, converted)

    return Linear(prepare=prepare, multiply=multiply)


def _float8(weight: torch.Tensor) -> Linear:
    """Weights and activations in eight-bit floats with one scale per tensor."""
    narrow, scale = scaled(weight, FLOAT8)

    def prepare(activations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return scaled(activations, FLOAT8)

    def multiply(operand: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        values, value_scale = operand
        return torch._scaled_mm(
            values, narrow.t(), scale_a=value_scale, scale_b=scale, out_dtype=torch.bfloat16
        )

    return Linear(prepare=prepare, multiply=multiply)


def _int8(weight: torch.Tensor) -> Linear:
    """Integer weights and activations with one scale per row each."""
    codes, scales = scaled(weight, torch.int8, dim=1)
    scale = scales.t().to(torch.bfloat16)

    def prepare(activations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, row_scales = scaled(activations, torch.int8, dim=1)
        missing_rows = max(MIN_ROWS - len(values), 0)
        padded = functional.pad(values, (0, 0, 0, missing_rows))
        return padded, row_scales.to(torch.bfloat16)

    def multiply(operand: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        values, row_scales = operand
        sums = torch._int_mm(values, codes.t())[: len(row_scales)]
        return sums.to(torch.bfloat16).mul_(row_scales).mul_(scale)

    return Linear(prepare=prepare, multiply=multiply)


def _int8_weights(weight: torch.Tensor) -> Linear:
    """Integer weights, converted before every product."""
    codes, scales = scaled(weight, torch.int8, dim=1)
    scale = scales.to(torch.bfloat16)

    def multiply(operand: torch.Tensor) -> torch.Tensor:
        converted = codes.to(torch.bfloat16).mul_(scale)
        return functional.linear(operand, converted)

    return Linear(prepare=_to_bfloat16, multiply=multiply)


def _int4_weights(weight: torch.Tensor) -> Linear:
    """Two weights per byte, one scale per `GROUP_SIZE`; converted before every product."""
    out, width = weight.shape
    groups = weight.float().reshape(-1, min(GROUP_SIZE, width))
    largest = groups.abs().amax(dim=1, keepdim=True)
    wide_scale = largest.clamp_min_(MIN_LARGEST) / INT4_MAX
    rounded = (groups / wide_scale).round_().add_(INT4_OFFSET).to(torch.uint8)
    numbers = rounded.reshape(out, width)
    # The lower half of a byte is the first of two weights.
    codes = numbers[:, 0::2] | (numbers[:, 1::2] << 4)
    scale = wide_scale.to(torch.bfloat16)

    def multiply(operand: torch.Tensor) -> torch.Tensor:
        numbers = torch.stack((codes & 15, codes >> 4), dim=2)
        groups = numbers.view(len(scale), -1).to(torch.bfloat16)
        weights = groups.sub_(INT4_OFFSET).mul_(scale)
        return functional.linear(operand, weights.view(out, -1))

    return Linear(prepare=_to_bfloat16, multiply=multiply)


def _to_bfloat16(activations: torch.Tensor) -> torch.Tensor:
    return activations.to(torch.bfloat16)


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


def refuse_format(number_format: str) -> str:
    """Return why torch does not multiply in a format; "" if it does."""
    if number_format in FORMATS:
        return ""
    return f"torch multiplies in {', '.join(FORMATS)}, not in {number_format}"


def cannot_run(problem: FrozenParameters, config: FrozenParameters) -> str:
    """Return why torch cannot run an operator; "" if it can."""
    number_format = str(config["format"])
    reason = refuse_format(number_format)
    if reason:
        return reason
    width = int(problem["K"])
    if number_format == "int4_wo" and (width % 2 or width % min(GROUP_SIZE, width)):
        return f"{width} weights in a row are not a multiple of {GROUP_SIZE}"
    return ""


def memory_bytes(problem: FrozenParameters, config: FrozenParameters) -> float:
    """Return the bytes of operands and result, at most eight per number: drawn and converted."""
    m, n, k = (float(problem[name]) for name in ("M", "N", "K"))
    numbers = m * k + n * k + m * n
    return MAX_BYTES_PER_NUMBER * numbers


def build(problem: FrozenParameters, config: FrozenParameters, device: str) -> Launch:
    """Return a call that multiplies random activations by a random weight."""
    m, n, k = (int(problem[name]) for name in ("M", "N", "K"))
    make_linear = FORMATS[str(config["format"])]
    linear = make_linear(random_tensor((n, k), device))
    operand = linear.prepare(random_tensor((m, k), device))
    return lambda: linear.multiply(operand)
