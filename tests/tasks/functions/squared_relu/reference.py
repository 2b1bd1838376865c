"""The squared relu, row by row."""

import torch

PROBLEMS = [{"rows": 12}, {"rows": 9}]


def inputs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, 16), generator=generator)
    return (x,)


def squared_relu(x):
    return torch.stack([torch.clamp(row, min=0) ** 2 for row in x])
