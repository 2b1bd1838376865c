"""The running mean, all rows at once."""

import torch


def running_mean(x):
    return x.cumsum(0) / torch.arange(1, len(x) + 1)[:, None]
