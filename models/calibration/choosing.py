"""Choosing which few rows to measure, of many that are to be predicted.

Few runs teach a correction most where they stand for all rows: one near the centre of each of as
many clusters of rows that are alike (k-means on the correction's own points). Runs drawn at random
crowd where rows are many and miss what is rare.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from foretune.features.arrays import Rows
from foretune.models.calibration.likeness import CorrectionFeatures, Similarity

MAX_CANDIDATES = 6000
"""So many, drawn at random, show where rows lie; the clusters of all cost much more."""


def representative_points(points: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
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


def choose_rows(
    rows: pd.DataFrame,
    count: int,
    predict_uncorrected: Callable[[pd.DataFrame], tuple[Any, CorrectionFeatures]],
    seed: int,
) -> pd.DataFrame:
    """Return ``count`` of the rows per device that stand for all there, one device after the other.

    Args:
        rows: to choose from.
        count: how many per device; where there are no more, all.
        predict_uncorrected: the log of what is predicted of rows, and what is known of them.
        seed: of which of many rows are looked at.
    """
    chosen = []
    for _, device_rows in rows.groupby("device", observed=True, sort=True):
        sampled = np.random.default_rng(seed).permutation(len(device_rows))[
            : max(MAX_CANDIDATES, count)
        ]
        device_rows = device_rows.iloc[sampled]
        _, features = predict_uncorrected(device_rows)
        points, _ = Similarity.from_rows(device_rows, features).points(Rows(device_rows), features)
        chosen.append(device_rows.iloc[representative_points(points, count, seed)].sort_index())
    return pd.concat(chosen, ignore_index=True)
