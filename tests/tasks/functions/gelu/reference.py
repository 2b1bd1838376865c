"""The gelu, row by row."""

import torch

PROBLEMS = [{"rows": 12}, {"rows": 9}]


def inputs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, 16), generator=generator)
    return (x,)


def gelu(x):
    return torch.stack([row * 0.5 * (1 + torch.erf(row / 2**0.5)) for row in x])
