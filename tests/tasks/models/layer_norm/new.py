"""The layer norm, all rows at once."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        weight = self.weight
        bias = self.bias
        return torch.nn.functional.layer_norm(x, (x.shape[1],), weight, bias, 1e-5)
