"""Minutes of a log: they are held out, and their errors give the width of intervals.

Steps that follow each other are alike, also in what no size of a step tells: how fast the machine
happened to be. Random steps that are held out have neighbors in time that were learned, so their
errors say nothing of another minute. Here, whole minutes are held out. The predictors that predict
them have learned the others.

An interval is that of the predictor, times one factor. The factor makes intervals cover 90 % of the
steps in minutes that were held out (a conformal quantile of |error| / half width). To judge a
minute, the factor comes from all other minutes.
"""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from foretune.models.conformal import conformal_quantile
from foretune.models.interval import Interval, LearnedInterval, RuleInterval
from foretune.models.predictor import Predictor

MINUTE_MS = 60_000.0
MIN_BLOCKS = 12
"""Parts of a log that is shorter than so many minutes."""
MAX_BLOCKS = 60
"""Parts of a log that is longer than so many minutes."""
MAX_USUAL_STEPS = 20
"""A step that is longer than so many usual ones fills no minute alone."""
SETS = 3
"""Sets of parts: each is held out once, with two other parts between two of it."""
MIN_HALF_WIDTH = 1e-6
"""Smallest half width of an interval, of the logarithm, so that nothing is divided by zero."""


@dataclass(frozen=True)
class HeldOutSteps:
    """All steps of a log, as predicted by predictors that had not seen their minute.

    Attributes:
        block: number of the minute.
        predicted_ms: the prediction.
        half_width: of the predictor's own 90 % interval, of the logarithm.
        error: log of measured over predicted.
    """

    block: np.ndarray
    predicted_ms: np.ndarray
    half_width: np.ndarray
    error: np.ndarray

    @property
    def width_factor(self) -> float:
        """Factor of half widths with which intervals hold in a minute that was not seen."""
        return self._factor(np.ones(len(self.block), dtype=bool))

    def is_inside(self) -> np.ndarray:
        """Return whether each step is in its interval, whose factor is from the other minutes."""
        inside = np.zeros(len(self.block), dtype=bool)
        for number in np.unique(self.block):
            of_block = self.block == number
            half_width = self._factor(~of_block) * self.half_width[of_block]
            inside[of_block] = np.abs(self.error[of_block]) <= half_width
        return inside

    def _factor(self, known: np.ndarray) -> float:
        """Return the factor from some of the steps."""
        misses = np.abs(self.error[known]) / self.half_width[known]
        return conformal_quantile(misses)


def minutes_of(runs: pd.DataFrame) -> np.ndarray:
    """Return the number of each step's minute, in the order of the log.

    The clock is the engine's: the sum of the times of its steps, in which a pause counts as
    `MAX_USUAL_STEPS` of them. A short log has at least `MIN_BLOCKS` parts, which are shorter than a
    minute.
    """
    step_ms = runs["time_ms"].to_numpy(dtype=float)
    longest_ms = MAX_USUAL_STEPS * float(np.median(step_ms))
    ends_ms = np.cumsum(np.minimum(step_ms, longest_ms))
    blocks = int(np.clip(round(ends_ms[-1] / MINUTE_MS), MIN_BLOCKS, MAX_BLOCKS))
    block = (blocks * ends_ms / ends_ms[-1]).astype(int)
    last: np.ndarray = np.minimum(block, blocks - 1)
    return last


def held_out_sets(runs: pd.DataFrame) -> list[np.ndarray]:
    """Return which steps are held out together: each step is in one of the sets."""
    block = minutes_of(runs)
    return [block % SETS == number for number in range(SETS)]


def with_width_factor(predictor: Predictor, factor: float) -> Predictor:
    """Return a predictor whose intervals of times are ``factor`` as wide; the old one is gone."""
    model = predictor.targets_["time_ms"]
    model.interval = _scaled(model.interval, factor)
    return predictor


def _scaled(interval: Interval, factor: float) -> Interval:
    """Return an interval whose half widths are multiplied."""
    if isinstance(interval, RuleInterval):
        return replace(
            interval,
            factor=factor * interval.factor,
            median_half_width=factor * interval.median_half_width,
            widest=factor * interval.widest,
        )
    assert isinstance(interval, LearnedInterval)
    beyond = interval.beyond_frontier
    return replace(
        interval,
        factor=factor * interval.factor,
        factors={kind: factor * own for kind, own in interval.factors.items()},
        median_half_width=factor * interval.median_half_width,
        beyond_frontier=None if beyond is None else factor * beyond,
    )
