"""The convolution of rows, row by row."""

import torch
from torch import nn

rows = 12
width = 16


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x):
        weight = self.weight
        rows = []
        for row in x:
            padded = torch.cat([row.new_zeros(2), row])
            rows.append(sum(w * padded[i : i + len(row)] for i, w in enumerate(weight)))
        return torch.stack(rows)


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
