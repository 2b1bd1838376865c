"""The squared distances, all rows at once."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        return (x[:, None] - y[None]).square().sum(2)
