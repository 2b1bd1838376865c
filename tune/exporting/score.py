"""What a way of choosing keeps of the best performance."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Score:
    """Shares of the best performance over problems.

    Attributes:
        kept: mean share where the chosen configuration was measured, 0 where it failed; NaN if it
            was measured nowhere.
        at_least: the same, where an unmeasured choice counts as a failure: a lower bound.
        worst: smallest share measured.
        problems: how many problems were asked for.
        unmeasured: how many of them did not have the chosen configuration.
    """

    kept: float
    at_least: float
    worst: float
    problems: int
    unmeasured: int


def score(share: npt.NDArray[np.float64], chosen: Sequence[int] | npt.NDArray[np.intp]) -> Score:
    """Return what choices keep.

    Args:
        share: shape (problems, configurations); NaN where a pair was not measured.
        chosen: the number of a configuration for each problem.
    """
    kept = share[np.arange(len(share)), np.asarray(chosen, dtype=np.intp)]
    measured = kept[~np.isnan(kept)]
    return Score(
        kept=float(measured.mean()) if len(measured) else np.nan,
        at_least=float(measured.sum() / len(kept)),
        worst=float(measured.min()) if len(measured) else np.nan,
        problems=len(kept),
        unmeasured=int(np.isnan(kept).sum()),
    )
