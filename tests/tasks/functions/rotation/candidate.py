"""The rotation, all rows at once."""

import torch


def rotation(x, angle):
    left, right = x.chunk(2, dim=1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=1)
