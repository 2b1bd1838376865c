"""The rotation, row by row."""

import torch

PROBLEMS = [{"rows": 12}, {"rows": 9}]


def inputs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, 16), generator=generator)
    angle = torch.randn((rows, 8), generator=generator)
    return x, angle


def rotation(x, angle):
    rows = []
    for row, turned in zip(x, angle, strict=True):
        left, right = row.chunk(2)
        cos, sin = turned.cos(), turned.sin()
        rows.append(torch.cat([left * cos - right * sin, right * cos + left * sin]))
    return torch.stack(rows)
