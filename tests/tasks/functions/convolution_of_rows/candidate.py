"""The convolution of rows, all rows at once."""

import torch


def convolution_of_rows(x, weight):
    padded = torch.nn.functional.pad(x, (2, 0))
    return sum(w * padded[:, i : i + x.shape[1]] for i, w in enumerate(weight))
