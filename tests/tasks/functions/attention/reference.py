"""The attention, row by row."""

import torch

PROBLEMS = [{"rows": 12}, {"rows": 9}]


def inputs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn((rows, 16), generator=generator)
    k = torch.randn((rows, 16), generator=generator)
    v = torch.randn((rows, 16), generator=generator)
    return q, k, v


def attention(q, k, v):
    rows = []
    for query in q:
        scores = k @ query / query.shape[0] ** 0.5
        rows.append(torch.softmax(scores, 0) @ v)
    return torch.stack(rows)
