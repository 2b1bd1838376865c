"""The linear with bias, all rows at once."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        weight = self.weight
        bias = self.bias
        return torch.nn.functional.linear(x, weight, bias)
