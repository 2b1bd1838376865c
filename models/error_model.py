"""A small model that learns how large errors are."""

from foretune.models.trees.boosting import BoostingModel

MIN_ERROR = 1e-3
"""Errors are clipped from below at 0.1 %."""


def error_model(seed: int) -> BoostingModel:
    """Return an unfitted model of errors; it suits data that is mostly noise."""
    return BoostingModel(rounds=40, depth=3, rate=0.2, min_child_weight=10.0, rows=0.7, seed=seed)
