"""The largest values, all rows at once."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.amax(1)
