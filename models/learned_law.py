"""A law of a kernel without a known family, learned from its rows.

Inputs are found in the columns (`foretune.features.families.learned_work`), the exponents are
fitted (`foretune.models.power_laws`). What cannot be fitted by squares, the tile and the number of
terms, is chosen by the error on held-out problems. It is chosen once; the exponents are fitted
again whenever rows are held out.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.features.arrays import Rows
from foretune.features.families.learned_work import LearnedWork
from foretune.models.power_laws import PowerLaws

MIN_PROBLEMS = 4
"""Minimum problems to learn a law from."""
TERMS = (1, 2, 3)
"""Numbers of power laws in the sum."""
MIN_GAIN = 0.98
"""More terms, or a tile, must lower the error on held-out problems to this share."""
STARTS = 3
"""Starts of the fit to all rows."""
MAX_ROWS = 1500
"""Maximum rows of a fit."""
FOLDS = 2
MAX_FOLD_ROWS = 400
"""Folds of problems by which the terms are chosen, beside the largest quarter of the problems; the
maximum rows of a fit there."""
ROWS_OF_PROBLEM = 6.0
"""Maximum weight of a problem, in rows: its configurations say little about its size."""


@dataclass(frozen=True)
class LearnedLaw:
    """The inputs of a law, and its fit to all rows.

    ``held_out_error`` is that by which it was chosen (`held_out_error`); NaN after loading.
    """

    work: LearnedWork
    laws: PowerLaws
    held_out_error: float = math.nan

    def refit(self, inputs: np.ndarray, log_ms: np.ndarray, problems: np.ndarray) -> PowerLaws:
        """Return a fit to other rows, which starts from the fit to all rows."""
        return _fit(
            inputs,
            log_ms,
            problems,
            terms=len(self.laws.coefficients),
            max_rows=MAX_ROWS,
            first=self.laws,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`."""
        return {"work": self.work.to_json(), "laws": self.laws.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the law that `to_json` wrote."""
        return cls(LearnedWork.from_json(data["work"]), PowerLaws.from_json(data["laws"]))


def learn_law(runs: pd.DataFrame, log_ms: np.ndarray, problems: np.ndarray) -> LearnedLaw | None:
    """Return the law of ``runs``, which take ``log_ms``; None if it cannot be learned.

    ``problems`` is the problem of each row. There is no law without sizes that vary, or with fewer
    than four problems.
    """
    rows = Rows(runs)
    work = LearnedWork.from_rows(rows)
    if work is None or int(problems.max(initial=-1)) + 1 < MIN_PROBLEMS:
        return None

    # Without a tile, then with one: more terms only where they explain held-out problems better.
    tiled = work.find_tile(rows, log_ms, problems)
    candidates = [work, tiled] if tiled.tile else [work]
    least_error = np.inf
    for candidate in candidates:
        inputs = candidate.inputs(rows)
        for terms in TERMS:
            error = held_out_error(
                log_ms, problems, partial(_predict, inputs, log_ms, problems, terms)
            )
            if error < MIN_GAIN * least_error:
                least_error = error
                chosen = candidate
                chosen_inputs = inputs
                chosen_terms = terms
    laws = _fit(chosen_inputs, log_ms, problems, terms=chosen_terms, max_rows=MAX_ROWS)
    return LearnedLaw(chosen, laws, least_error)


def _predict(
    inputs: np.ndarray,
    log_ms: np.ndarray,
    problems: np.ndarray,
    terms: int,
    is_known: np.ndarray,
    is_out: np.ndarray,
) -> np.ndarray:
    """Return the logs of the rows ``is_out``, by a fit to the rows ``is_known``."""
    laws = _fit(
        inputs[is_known],
        log_ms[is_known],
        problems[is_known],
        terms=terms,
        max_rows=MAX_FOLD_ROWS,
    )
    return laws.log_value(inputs[is_out])


def _fit(
    inputs: np.ndarray,
    log_ms: np.ndarray,
    problems: np.ndarray,
    terms: int,
    max_rows: int,
    first: PowerLaws | None = None,
) -> PowerLaws:
    """Return the fit to at most ``max_rows`` rows; see `PowerLaws.fit` for ``first``."""
    sampled = np.random.default_rng(0).permutation(len(inputs))[:max_rows]
    return PowerLaws.fit(
        inputs[sampled],
        log_ms[sampled],
        _row_weight(problems[sampled]),
        terms=terms,
        starts=STARTS,
        first=first,
    )


def _row_weight(problems: np.ndarray) -> np.ndarray:
    rows_of_problem = np.bincount(problems)[problems]
    return np.minimum(ROWS_OF_PROBLEM / rows_of_problem, 1.0)


def held_out_error(
    log_ms: np.ndarray,
    problems: np.ndarray,
    predict: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> float:
    """Return the mean absolute error of the log in problems held out: any, and the largest.

    ``predict`` takes masks of the rows to learn from and of those to predict, and returns the logs
    of the latter.
    """
    weight = _row_weight(problems)
    total_error = 0.0
    total_weight = 0.0
    for is_out in _holdouts(log_ms, problems):
        errors = np.abs(predict(~is_out, is_out) - log_ms[is_out])
        total_error += float(weight[is_out] @ errors)
        total_weight += float(weight[is_out].sum())
    return total_error / total_weight


def _holdouts(log_ms: np.ndarray, problems: np.ndarray) -> Iterator[np.ndarray]:
    """Yield masks of rows: folds of problems, then those with the longest mean time."""
    n_problems = int(problems.max()) + 1
    shuffled = np.random.default_rng(0).permutation(n_problems)
    for fold in range(FOLDS):
        yield shuffled[problems] % FOLDS == fold
    rows_of_problem = np.maximum(np.bincount(problems), 1)
    mean_time = np.bincount(problems, log_ms) / rows_of_problem
    n_largest = max(1, n_problems // 4)
    yield np.isin(problems, np.argsort(-mean_time)[:n_largest])
