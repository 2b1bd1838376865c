"""Scores of a search: evaluations needed, share of the optimum, and a score from the literature."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretune.search.replay.recorded import RecordedSpace
from foretune.search.replay.replay import ReplayResult

EVALUATION_POINTS = (5, 10, 20, 50, 100, 200)
"""Numbers of evaluations at which shares of the optimum are reported."""
RANGE_START = 0.01
RANGE_END = 0.95
"""The score covers random search from 1 to 95 % of the way from median to optimum."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How fast a searcher finds good configurations: in one space, or as means over several.

    ``evals_to_95``: median evaluations to reach 95 % of the optimum; None if fewer than half of the
    repeats do. Over spaces, the geometric mean, where None counts as twice the budget. ``hit_95``:
    share of the repeats that reach 95 % within the budget. ``fraction_at``: mean of optimum / best
    over repeats, by number of evaluations. ``score``: mean `methodology_score` over repeats, NaN if
    undefined; over spaces, the mean of those that have one; ``score_error`` is its standard error.
    ``overhead_ms``: the searcher's own mean milliseconds per evaluation.
    """

    searcher: str
    evals_to_95: float | None
    evals_to_99: float | None
    hit_95: float
    fraction_at: dict[int, float]
    score: float
    score_error: float
    overhead_ms: float


@dataclass(frozen=True, kw_only=True)
class Scores(Figures):
    """Scores of one searcher on one recorded space.

    ``within_5`` is the number of configurations with optimum / objective ≥ 0.95, ``budget`` that of
    evaluations per repeat.
    """

    space: str
    configurations: int
    within_5: int
    budget: int
    repeats: int


@dataclass(frozen=True, kw_only=True)
class Summary(Figures):
    """Scores of one searcher over several ``spaces``."""

    spaces: int
    evals_to_95: float
    evals_to_99: float


def score_replay(recorded: RecordedSpace, result: ReplayResult) -> Scores:
    """Return the scores of ``result``, a replay of ``recorded``."""
    curves = result.curves
    scores = methodology_score(recorded.values, curves)
    score_error = math.nan
    if len(scores) > 1 and np.isfinite(scores).all():
        score_error = float(scores.std(ddof=1) / math.sqrt(len(scores)))
    fraction_at = {}
    for n in EVALUATION_POINTS:
        if n <= result.budget:
            fraction_at[n] = float(curves[:, n - 1].mean())
    return Scores(
        space=result.space,
        searcher=result.searcher,
        configurations=len(recorded),
        within_5=recorded.count_within(0.95),
        budget=result.budget,
        repeats=result.repeats,
        evals_to_95=evals_to(0.95, curves),
        evals_to_99=evals_to(0.99, curves),
        hit_95=float((curves[:, -1] >= 0.95).mean()),
        fraction_at=fraction_at,
        score=float(scores.mean()),
        score_error=score_error,
        overhead_ms=float(np.nanmean(result.overhead_ms)),
    )


def evals_to(share: float, curves: np.ndarray) -> float | None:
    """Return the median over repeats of the first n at which a curve reaches ``share``.

    None if fewer than half of the repeats reach it. If exactly half do, it is the last of those.
    """
    is_reached = curves >= share
    reaches = is_reached.any(axis=1)
    if reaches.mean() < 0.5:
        return None
    first = np.where(reaches, is_reached.argmax(axis=1) + 1.0, np.inf)
    median = float(np.median(first))
    if math.isfinite(median):
        return median
    return float(first[reaches].max())


def methodology_score(values: np.ndarray, curves: np.ndarray) -> np.ndarray:
    """Return each repeat's score against random search: 0 is equal, 1 is perfect.

    The score at n evaluations is (baseline(n) − best(n)) / (baseline(n) − optimum). It is averaged
    over n from where `random_baseline` has come 1 % of the way from the median to the optimum up to
    95 %, or the end of the budget (Willemsen et al., "A methodology for comparing optimization
    algorithms for auto-tuning", FGCS 159, 2024). A failure counts as the slowest success in
    baseline and search, so that random search scores 0 on average. NaN if the optimum equals the
    median, or if the budget ends before the range begins.

    The authors' package (``autotuning-methodology``) differs: it runs over time instead of
    evaluations, charges revisited configurations again, and uses as baseline the value at the mean
    rank of the best of n successful draws. In a skewed space this value is below the mean. There
    random search scores below 0, and all searchers score lower than here.

    ``values``: objective of every configuration of the space, infinite for failures; ``curves``:
    optimum / best so far, shape (repeats, evaluations).
    """
    finite = values[np.isfinite(values)]
    optimum = finite.min()
    worst = finite.max()
    median = float(np.median(finite))

    # The range: from where random search has begun, up to the first n at which it is done. Where it
    # has the optimum itself, nothing is left to gain.
    baseline = random_baseline(values, curves.shape[1])
    has_begun = (median - baseline) >= RANGE_START * (median - optimum)
    is_done = (median - baseline) >= RANGE_END * (median - optimum)
    was_done_before = np.append(False, is_done[:-1])
    counts = has_begun & ~was_done_before & (baseline > optimum)
    if not counts.any():
        return np.full(len(curves), np.nan)

    with np.errstate(divide="ignore"):
        best = np.minimum(optimum / curves[:, counts], worst)
    gain = (baseline[counts] - best) / (baseline[counts] - optimum)
    return np.asarray(gain.mean(axis=1))


def random_baseline(values: np.ndarray, budget: int) -> np.ndarray:
    """Return the expected best of 1 … ``budget`` draws without replacement from ``values``.

    The formula is exact. With the N values in ascending order, all n draws are the k-th (from 0) or
    later with probability (N − k)/N · (N − k − 1)/(N − 1) · …, n factors. Failures (infinite
    values) count as the largest finite one.
    """
    finite = np.isfinite(values)
    ordered = np.sort(np.where(finite, values, values[finite].max()))
    size = len(ordered)
    expected = np.full(budget, ordered[0])
    later = np.arange(size, -1, -1.0)  # how many values are the k-th or later, k = 0 … N
    survival = np.ones(size + 1)
    for n in range(min(budget, size)):
        survival *= np.maximum(later - n, 0.0) / (size - n)
        expected[n] = (-np.diff(survival) * ordered).sum()
    return expected


def summarize(scores: Sequence[Scores]) -> Summary:
    """Return the summary of one searcher's scores on different spaces."""
    budget = max(s.budget for s in scores)
    points = scores[0].fraction_at

    # Some spaces have no score.
    scored = [s for s in scores if math.isfinite(s.score)]
    score = score_error = math.nan
    if scored:
        score = float(np.mean([s.score for s in scored]))
        variance_of_sum = sum([s.score_error**2 for s in scored])
        score_error = math.sqrt(variance_of_sum) / len(scored)
    return Summary(
        searcher=scores[0].searcher,
        spaces=len(scores),
        evals_to_95=geometric_mean_evals([s.evals_to_95 for s in scores], budget),
        evals_to_99=geometric_mean_evals([s.evals_to_99 for s in scores], budget),
        hit_95=float(np.mean([s.hit_95 for s in scores])),
        fraction_at={n: float(np.mean([s.fraction_at[n] for s in scores])) for n in points},
        score=score,
        score_error=score_error,
        overhead_ms=float(np.mean([s.overhead_ms for s in scores])),
    )


def geometric_mean_evals(evals: Sequence[float | None], budget: int) -> float:
    """Return the geometric mean over spaces of `evals_to`; None counts as twice the budget."""
    counts = [2 * budget if count is None else count for count in evals]
    return float(np.exp(np.mean(np.log(counts))))
