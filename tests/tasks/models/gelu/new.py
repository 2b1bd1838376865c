"""The gelu, all rows at once."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x * 0.5 * (1 + torch.erf(x / 2**0.5))
