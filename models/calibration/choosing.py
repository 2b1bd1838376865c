"""Choosing which few rows to measure, of many that are to be predicted.

Few runs teach a correction most where they stand for all rows: one near the centre of each of as
many clusters of rows that are alike (k-means on the correction's own points). Runs drawn at random
crowd where rows are many and miss what is rare.
"""

import numpy as np
import pandas as pd

MOST_CANDIDATES = 6000
"""So many, drawn at random, show where rows lie; the clusters of all cost much more."""


def typical_points(points: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Return the numbers, ascending, of ``count`` of ``points`` (rows, inputs) that stand for all.

    All of them where there are no more.
    """
    from sklearn.cluster import KMeans

    if len(points) <= count:
        return np.arange(len(points))
    distances = KMeans(count, n_init=1, random_state=seed).fit_transform(points)
    chosen = np.empty(count, dtype=np.int64)
    for cluster in range(count):
        chosen[cluster] = distances[:, cluster].argmin()
        distances[chosen[cluster]] = np.inf  # alike rows have one nearest centre: each once
    return np.sort(chosen)


def candidates(rows: pd.DataFrame, count: int, seed: int = 0) -> pd.DataFrame:
    """Return the rows among which ``count`` are chosen: all, or `MOST_CANDIDATES` of them."""
    some = np.random.default_rng(seed).permutation(len(rows))[: max(MOST_CANDIDATES, count)]
    return rows.iloc[some]
