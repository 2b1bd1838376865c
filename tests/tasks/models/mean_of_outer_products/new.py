"""The mean of outer products, all rows at once."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        return x.T @ y / len(x)
