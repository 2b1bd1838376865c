"""The layer norm, row by row."""

import torch
from torch import nn

rows = 12
width = 16


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        weight = self.weight
        bias = self.bias
        rows = []
        for row in x:
            centered = row - row.mean()
            rows.append(centered / (centered.square().mean() + 1e-5).sqrt() * weight + bias)
        return torch.stack(rows)


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
