"""Few trees that answer like a predictor of steps, in far less than a millisecond.

Simulators ask for one step at a time, and load a model of their own. So trees learn what the
predictor answers for the steps of the log, and for steps up to twice as large: there, trees that
saw the log alone would repeat their last leaf.
"""

import numpy as np
from sklearn.ensemble import GradientBoostingRegressor

TREES = 100
MAX_DEPTH = 6
LEARNING_RATE = 0.1
SAMPLE_SHARE = 0.7
"""Of the steps, drawn anew for each tree."""


def trees_of_log(X: np.ndarray, ms: np.ndarray, seed: int = 0) -> GradientBoostingRegressor:
    """Return trees of the logarithm of milliseconds."""
    fitted: GradientBoostingRegressor = _new_trees(seed).fit(X, np.log(ms))
    return fitted


def trees_of_seconds(X: np.ndarray, s: np.ndarray, seed: int = 0) -> GradientBoostingRegressor:
    """Return trees of seconds; the weights make relative errors small, as a logarithm would."""
    fitted: GradientBoostingRegressor = _new_trees(seed).fit(X, s, sample_weight=s**-2)
    return fitted


def _new_trees(seed: int = 0) -> GradientBoostingRegressor:
    """Return trees to be fitted to logarithms of times."""
    return GradientBoostingRegressor(
        n_estimators=TREES,
        max_depth=MAX_DEPTH,
        learning_rate=LEARNING_RATE,
        subsample=SAMPLE_SHARE,
        random_state=seed,
    )
