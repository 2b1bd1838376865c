"""Linear layers by torch, in every number format that torch supports."""

from abc import ABC, abstractmethod
from collections.abc import Callable
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


class Linear(ABC):
    """A linear layer in one format, from ``weight`` (out, in) in 16 or 32 bits."""

    @abstractmethod
    def __init__(self, weight: torch.Tensor) -> None: ...

    def prepare(self, activations: torch.Tensor) -> Any:
        """Convert activations in 16 or 32 bits to the input of `multiply`; not timed."""
        return activations.to(torch.bfloat16)

    @abstractmethod
    def multiply(self, operand: Any) -> torch.Tensor:
        """Return the product, (rows, out), in 16 bits, or 32 if the format has 32."""


class _Plain(Linear):
    """Weights and activations in a format that torch multiplies directly."""

    dtype = torch.bfloat16

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight.to(self.dtype)

    def prepare(self, activations: torch.Tensor) -> torch.Tensor:
        return activations.to(self.dtype)

    def multiply(self, operand: torch.Tensor) -> torch.Tensor:
        return functional.linear(operand, self._weight)


class _Half(_Plain):
    dtype = torch.float16


class _Single(_Plain):
    dtype = torch.float32


class _Float8(Linear):
    """Weights and activations in eight-bit floats with one scale per tensor."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight, self._scale = _scaled(weight, FLOAT8)

    def prepare(self, activations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _scaled(activations, FLOAT8)

    def multiply(self, operand: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        values, scale = operand
        return torch._scaled_mm(
            values, self._weight.t(), scale_a=scale, scale_b=self._scale, out_dtype=torch.bfloat16
        )


class _Int8(Linear):
    """Integer weights and activations with one scale per row each."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight, scale = _scaled(weight, torch.int8, dim=1)
        self._scale = scale.t().to(torch.bfloat16)

    def prepare(self, activations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, scale = _scaled(activations, torch.int8, dim=1)
        missing = max(MIN_ROWS - len(values), 0)
        return functional.pad(values, (0, 0, 0, missing)), scale.to(torch.bfloat16)

    def multiply(self, operand: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        values, scale = operand
        sums = torch._int_mm(values, self._weight.t())[: len(scale)]
        return sums.to(torch.bfloat16).mul_(scale).mul_(self._scale)


class _Int8Weights(Linear):
    """Integer weights, converted before every product."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight, scale = _scaled(weight, torch.int8, dim=1)
        self._scale = scale.to(torch.bfloat16)

    def multiply(self, operand: torch.Tensor) -> torch.Tensor:
        return functional.linear(operand, self._weight.to(torch.bfloat16).mul_(self._scale))


class _Int4Weights(Linear):
    """Two weights per byte, one scale per `GROUP`; converted before every product."""

    def __init__(self, weight: torch.Tensor) -> None:
        out, width = weight.shape
        groups = weight.float().reshape(-1, min(GROUP_SIZE, width))
        scale = groups.abs().amax(dim=1, keepdim=True).clamp_min_(1e-12) / 7.0
        codes = (groups / scale).round_().add_(8.0).to(torch.uint8).reshape(out, width)
        self._codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
        self._scale = scale.to(torch.bfloat16)

    def multiply(self, operand: torch.Tensor) -> torch.Tensor:
        codes = torch.stack((self._codes & 15, self._codes >> 4), dim=2)
        groups = codes.view(len(self._scale), -1).to(torch.bfloat16).sub_(8.0).mul_(self._scale)
        return functional.linear(operand, groups.view(len(self._codes), -1))


FORMATS: dict[str, Callable[[torch.Tensor], Linear]] = {
    "bf16": _Plain,
    "fp16": _Half,
    "fp32": _Single,
    "fp8": _Float8,
    "fp8_static": _Float8,
    "int8": _Int8,
    "int8_wo": _Int8Weights,
    "int4_wo": _Int4Weights,
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
