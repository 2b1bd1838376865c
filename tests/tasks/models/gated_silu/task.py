"""The gated silu, row by row."""

import torch
from torch import nn

rows = 12
width = 16


class Model(nn.Module):
    def forward(self, gate, x):
        return torch.stack([g / (1 + torch.exp(-g)) * row for g, row in zip(gate, x, strict=True)])


def get_inputs():
    return [torch.randn(rows, width), torch.randn(rows, width)]


def get_init_inputs():
    return []
