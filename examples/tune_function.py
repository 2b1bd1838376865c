"""A NumPy function whose blocks are a knob: row norms of a matrix that does not fit into the cache.

python examples/tune_function.py [ROWS]
"""

import sys

import numpy as np

import foretune as ft


def row_norms(x, out, block=16, squares="multiply"):
    """Write the norm of every row of ``x`` into ``out``, some rows at a time."""
    for start in range(0, len(x), block):
        rows = x[start : start + block]
        if squares == "multiply":
            sums = (rows * rows).sum(axis=1)
        else:
            sums = np.einsum("ij,ij->i", rows, rows)
        np.sqrt(sums, out=out[start : start + block])


if __name__ == "__main__":
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    x = np.random.default_rng(0).random((rows, 256))
    best = ft.tune_function(
        row_norms,
        {"block": [2**i for i in range(2, 13)], "squares": ["multiply", "einsum"]},
        args=(x, np.empty(rows)),
        check=lambda x, out: np.linalg.norm(x, axis=1),
        budget=10,
    )
    print(best.config, f"{best.speedup:.2f}× the default's speed")
    best.report("row_norms.html")
