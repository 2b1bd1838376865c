"""A run table of a whole space: sixty configurations, three of which fail."""

import itertools

import numpy as np
import pandas as pd


def space_runs(kernel="toy", device="Toy GPU", n=100, best=3):
    """Return the runs; the best has x=best, y=2, mode='b'; x=5 with y=3 fails."""
    rows = [
        {
            "kernel": kernel,
            "device": device,
            "status": "ok",
            "problem.n": n,
            "config.x": x,
            "config.y": y,
            "config.mode": mode,
            "time_ms": 1 + abs(x - best) + abs(y - 2) / 2 + (mode != "b") + x * y / 100,
        }
        for x, y, mode in itertools.product(range(1, 6), range(4), "abc")
    ]
    runs = pd.DataFrame(rows)
    broken = (runs["config.x"] == 5) & (runs["config.y"] == 3)
    runs.loc[broken, ["status", "time_ms"]] = ["runtime_error", np.nan]
    return runs
