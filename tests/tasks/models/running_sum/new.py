"""The running sum, all rows at once."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.cumsum(0)
