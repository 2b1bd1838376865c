"""The layer norm, all rows at once."""

import torch


def layer_norm(x, weight, bias):
    return torch.nn.functional.layer_norm(x, (x.shape[1],), weight, bias, 1e-5)
