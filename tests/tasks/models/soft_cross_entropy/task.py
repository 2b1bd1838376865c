"""The soft cross entropy, row by row."""

import torch
from torch import nn

rows = 12
width = 16


class Model(nn.Module):
    def forward(self, x, target):
        losses = []
        for row, wanted in zip(x, target, strict=True):
            losses.append(-(torch.softmax(wanted, 0) * torch.log_softmax(row, 0)).sum())
        return torch.stack(losses)


def get_inputs():
    return [torch.randn(rows, width), torch.randn(rows, width)]


def get_init_inputs():
    return []
