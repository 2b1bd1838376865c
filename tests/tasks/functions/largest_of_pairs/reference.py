"""The largest of pairs, row by row."""

import torch

PROBLEMS = [{"rows": 12}, {"rows": 9}]


def inputs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, 16), generator=generator)
    return (x,)


def largest_of_pairs(x):
    return torch.stack([row.reshape(-1, 2).max(dim=1).values for row in x])
