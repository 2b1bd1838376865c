"""The residual rms norm, row by row."""

import torch
from torch import nn

rows = 12
width = 16


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x, residual):
        weight = self.weight
        rows = []
        for row, other in zip(x, residual, strict=True):
            total = row + other
            rows.append(total / (total.square().mean() + 1e-6).sqrt() * weight)
        return torch.stack(rows)


def get_inputs():
    return [torch.randn(rows, width), torch.randn(rows, width)]


def get_init_inputs():
    return [width]
