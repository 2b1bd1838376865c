"""The layer norm, row by row."""

import torch

PROBLEMS = [{"rows": 12}, {"rows": 9}]


def inputs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, 16), generator=generator)
    weight = torch.randn((16), generator=generator)
    bias = torch.randn((16), generator=generator)
    return x, weight, bias


def layer_norm(x, weight, bias):
    rows = []
    for row in x:
        centered = row - row.mean()
        rows.append(centered / (centered.square().mean() + 1e-5).sqrt() * weight + bias)
    return torch.stack(rows)
