"""A product of matrices in Helion, which takes no closures: `doors.py` tunes it."""

import helion.language as hl
import torch


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return ``x @ y``."""
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([x.size(0), y.size(1)]):
        total = hl.zeros([rows, columns], dtype=torch.float32)
        for k in hl.tile(x.size(1)):
            total = torch.addmm(total, x[rows, k], y[k, columns])
        out[rows, columns] = total
    return out
