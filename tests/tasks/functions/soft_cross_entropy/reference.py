"""The soft cross entropy, row by row."""

import torch

PROBLEMS = [{"rows": 12}, {"rows": 9}]


def inputs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, 16), generator=generator)
    target = torch.randn((rows, 16), generator=generator)
    return x, target


def soft_cross_entropy(x, target):
    losses = []
    for row, wanted in zip(x, target, strict=True):
        losses.append(-(torch.softmax(wanted, 0) * torch.log_softmax(row, 0)).sum())
    return torch.stack(losses)
