"""The soft cross entropy, all rows at once."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, target):
        return -(torch.softmax(target, 1) * torch.log_softmax(x, 1)).sum(1)
