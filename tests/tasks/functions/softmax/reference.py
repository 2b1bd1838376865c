"""The softmax, row by row."""

import torch

PROBLEMS = [{"rows": 12}, {"rows": 9}]


def inputs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, 16), generator=generator)
    return (x,)


def softmax(x):
    powers = [torch.exp(row - row.max()) for row in x]
    return torch.stack([row / row.sum() for row in powers])
