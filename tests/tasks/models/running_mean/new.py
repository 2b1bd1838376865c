"""The running mean, all rows at once."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.cumsum(0) / torch.arange(1, len(x) + 1)[:, None]
