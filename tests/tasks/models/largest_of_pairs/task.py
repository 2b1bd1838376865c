"""The largest of pairs, row by row."""

import torch
from torch import nn

rows = 12
width = 16


class Model(nn.Module):
    def forward(self, x):
        return torch.stack([row.reshape(-1, 2).max(dim=1).values for row in x])


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return []
