"""The attention, row by row."""

import torch
from torch import nn

rows = 12
width = 16


class Model(nn.Module):
    def forward(self, q, k, v):
        rows = []
        for query in q:
            scores = k @ query / query.shape[0] ** 0.5
            rows.append(torch.softmax(scores, 0) @ v)
        return torch.stack(rows)


def get_inputs():
    return [torch.randn(rows, width), torch.randn(rows, width), torch.randn(rows, width)]


def get_init_inputs():
    return []
