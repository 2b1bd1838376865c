"""The residual rms norm, all rows at once."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x, residual):
        weight = self.weight
        total = x + residual
        return total * torch.rsqrt(total.square().mean(1, keepdim=True) + 1e-6) * weight
