"""The convolution of rows, all rows at once."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x):
        weight = self.weight
        padded = torch.nn.functional.pad(x, (2, 0))
        return sum(w * padded[:, i : i + x.shape[1]] for i, w in enumerate(weight))
