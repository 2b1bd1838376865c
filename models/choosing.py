"""Choosing which few rows to measure, of many that are to be predicted.

Few runs teach a correction most where they stand for all rows: one near the centre of each of as
many clusters of rows that are alike (k-means on the correction's own points). Runs drawn at random
crowd where rows are many and miss what is rare.
"""

import numpy as np

MOST_CANDIDATES = 6000
"""So many, drawn at random, show where rows lie; the clusters of all cost much more."""


def typical_points(points: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Return the numbers, ascending, of ``count`` of ``points`` (rows, inputs) that stand for all.

    All of them where there are no more.
    """
    from sklearn.cluster import KMeans

    some = np.random.default_rng(seed).permutation(len(points))[: max(MOST_CANDIDATES, count)]
    if len(some) <= count:
        return np.sort(some)
    clusters = KMeans(count, n_init=1, random_state=seed)
    distances = clusters.fit_transform(points[some])
    chosen = []
    for cluster in range(count):
        nearest = int(distances[:, cluster].argmin())
        distances[nearest] = np.inf  # alike rows have one nearest centre: each is chosen once
        chosen.append(some[nearest])
    return np.sort(chosen)
