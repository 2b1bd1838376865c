"""The log softmax, all rows at once."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.log_softmax(x, dim=1)
