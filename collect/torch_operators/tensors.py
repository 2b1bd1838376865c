"""Random tensors, and tensors in eight bits."""

from math import prod

import torch

DISTINCT_NUMBERS = 2**22 - 3
"""Period of the random numbers in a tensor: drawing gigabytes would take longer than measuring.

It is odd, so that rows differ."""
FLOAT8 = torch.float8_e4m3fn
MAX_VALUE = {FLOAT8: 448.0, torch.int8: 127.0}
"""Largest number of each eight-bit format."""
MIN_LARGEST = 1e-12
"""Smallest largest number of a scaled tensor: zeros must not be divided by zero."""


def random_tensor(shape: tuple[int, ...], device: str) -> torch.Tensor:
    """Return normal random numbers in 16 bits, periodic and the same in every run."""
    generator = torch.Generator(device).manual_seed(0)
    size = prod(shape)
    distinct = min(size, DISTINCT_NUMBERS)
    numbers = torch.randn(distinct, generator=generator, device=device, dtype=torch.bfloat16)
    periods = -(-size // distinct)
    return numbers.repeat(periods)[:size].view(shape)


def scaled(
    values: torch.Tensor, dtype: torch.dtype, dim: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``values`` in eight bits and their scale (per row with ``dim`` 1)."""
    wide = values.float()
    magnitudes = wide.abs()
    largest = magnitudes.amax() if dim is None else magnitudes.amax(dim=dim, keepdim=True)
    scale = largest.clamp_min(MIN_LARGEST) / MAX_VALUE[dtype]
    in_range = wide / scale
    if dtype is torch.int8:
        in_range.round_()
    return in_range.to(dtype), scale
