"""The linear with bias, row by row."""

import torch
from torch import nn

rows = 12
width = 16


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        weight = self.weight
        bias = self.bias
        return torch.stack([weight @ row + bias for row in x])


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
