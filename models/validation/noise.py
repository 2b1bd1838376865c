"""The noise floor: how far a measurement is from itself. No model can be closer than that."""

import numpy as np
import pandas as pd

MIN_SAMPLES = 4
MIN_ROWS = 5


def noise_floor(runs: pd.DataFrame) -> float:
    """Return the error that a perfect prediction of ``time_ms`` would still seem to have.

    Estimated from repeats: the medians of the even and of the odd samples of a run differ by noise
    alone; the median of all samples has half the variance of either, so its own error is half of
    their difference. Mean over runs, as a fraction; NaN without repeats. Noise between sessions
    (clocks, temperature, other versions) is not in it: the floor is a lower bound.
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
