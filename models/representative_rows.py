"""Chooses the rows that represent others best: those to measure for a calibration."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from foretune.features.arrays import Rows
from foretune.models.correction import CorrectionFeatures, Similarity

MAX_CANDIDATES = 6000
"""Rows sampled for clustering, which is much slower on all."""


def choose_rows(
    rows: pd.DataFrame,
    count: int,
    predict_uncorrected: Callable[[pd.DataFrame], tuple[Any, CorrectionFeatures]],
    seed: int,
) -> pd.DataFrame:
    """Return ``count`` representative rows per device, grouped by device."""
    chosen_rows = []
    for _, device_rows in rows.groupby("device", observed=True, sort=True):
        order = np.random.default_rng(seed).permutation(len(device_rows))
        candidates = device_rows.iloc[order[: max(MAX_CANDIDATES, count)]]
        _, features = predict_uncorrected(candidates)
        similarity = Similarity.from_rows(candidates, features)
        points, _ = similarity.points(Rows(candidates), features)
        numbers = representative_points(points, count, seed)
        chosen_rows.append(candidates.iloc[numbers].sort_index())
    return pd.concat(chosen_rows, ignore_index=True)


def representative_points(points: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Return the sorted indices of ``count`` representative points (rows, inputs), or of all."""
    from sklearn.cluster import KMeans

    if len(points) <= count:
        return np.arange(len(points))
    distances = KMeans(count, n_init=1, random_state=seed).fit_transform(points)
    chosen = np.empty(count, dtype=np.int64)
    for cluster in range(count):
        chosen[cluster] = distances[:, cluster].argmin()
        distances[chosen[cluster]] = np.inf  # no row is chosen twice
    return np.sort(chosen)
