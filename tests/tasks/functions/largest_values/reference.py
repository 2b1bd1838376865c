"""The largest values, row by row."""

import torch

PROBLEMS = [{"rows": 12}, {"rows": 9}]


def inputs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, 16), generator=generator)
    return (x,)


def largest_values(x):
    return torch.stack([row.max() for row in x])
