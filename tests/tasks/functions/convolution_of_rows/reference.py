"""The convolution of rows, row by row."""

import torch

PROBLEMS = [{"rows": 12}, {"rows": 9}]


def inputs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, 16), generator=generator)
    weight = torch.randn((3), generator=generator)
    return x, weight


def convolution_of_rows(x, weight):
    rows = []
    for row in x:
        padded = torch.cat([row.new_zeros(2), row])
        rows.append(sum(w * padded[i : i + len(row)] for i, w in enumerate(weight)))
    return torch.stack(rows)
