"""The rms norm, row by row."""

import torch
from torch import nn

rows = 12
width = 16


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x):
        weight = self.weight
        return torch.stack([row / (row.square().mean() + 1e-6).sqrt() * weight for row in x])


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
