"""The linear with bias, all rows at once."""

import torch


def linear_with_bias(x, weight, bias):
    return torch.nn.functional.linear(x, weight, bias)
