"""The log softmax, row by row."""

import torch
from torch import nn

rows = 12
width = 16


class Model(nn.Module):
    def forward(self, x):
        centered = [row - row.max() for row in x]
        return torch.stack([row - row.exp().sum().log() for row in centered])


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return []
