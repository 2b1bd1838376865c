"""The gated silu, all rows at once."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, gate, x):
        return torch.nn.functional.silu(gate) * x
