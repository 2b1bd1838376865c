"""The largest of pairs, all rows at once."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.unflatten(1, (-1, 2)).amax(2)
