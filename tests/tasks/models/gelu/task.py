"""The gelu, row by row."""

import torch
from torch import nn

rows = 12
width = 16


class Model(nn.Module):
    def forward(self, x):
        return torch.stack([row * 0.5 * (1 + torch.erf(row / 2**0.5)) for row in x])


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return []
