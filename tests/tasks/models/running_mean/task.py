"""The running mean, row by row."""

import torch
from torch import nn

rows = 12
width = 16


class Model(nn.Module):
    def forward(self, x):
        total = torch.zeros_like(x[0])
        rows = []
        for number, row in enumerate(x, 1):
            total = total + row
            rows.append(total / number)
        return torch.stack(rows)


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return []
