"""The squared relu, row by row."""

import torch
from torch import nn

rows = 12
width = 16


class Model(nn.Module):
    def forward(self, x):
        return torch.stack([torch.clamp(row, min=0) ** 2 for row in x])


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return []
