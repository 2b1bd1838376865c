"""Calibration: intervals that are right as often as they say.

Conformal prediction (Vovk, Gammerman and Shafer, 2005) on the residuals of rows that were held out:
the interval is the prediction times and divided by a factor, large enough to have held for 90 % of
them.
"""

import numpy as np

CONFIDENCE = 0.9


def half_width(residuals: np.ndarray, confidence: float = CONFIDENCE) -> float:
    """Return the half-width that covers ``confidence`` of |residuals|, with the finite-sample step.

    With too few residuals for the level, the largest one.
    """
    n = len(residuals)
    rank = min(n, int(np.ceil((n + 1) * confidence)))
    return float(np.sort(np.abs(residuals))[rank - 1])


def cross_half_widths(residuals: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return per row the half-width learned from the other folds: coverage is scored with it."""
    widths = np.empty(len(residuals))
    for fold in np.unique(folds):
        held_out = folds == fold
        widths[held_out] = half_width(residuals[~held_out])
    return widths
