"""The noise floor: the error of a perfect prediction."""

import numpy as np
import pandas as pd

MIN_SAMPLES = 4
MIN_ROWS = 5


def noise_floor(runs: pd.DataFrame) -> float:
    """Return the error that a perfect prediction of ``time_ms`` would show.

    Estimated from repeats: the medians of the even and odd samples of a run differ by noise alone.
    The median of all samples has half the variance of either, so its error is half of their
    difference. Returns the mean over runs as a fraction; NaN without repeats. Noise between
    sessions (clocks, temperature, other versions) is not included, so this is a lower bound.
    """
    if "time_ms_samples" not in runs:
        return float("nan")
    floors = []
    for samples in runs.loc[runs["status"] == "ok", "time_ms_samples"]:
        if samples is None or np.ndim(samples) == 0 or len(samples) < MIN_SAMPLES:
            continue
        even, odd = np.median(samples[0::2]), np.median(samples[1::2])
        floors.append(abs(even - odd) / (even + odd))
    return float(np.mean(floors)) if len(floors) >= MIN_ROWS else float("nan")
