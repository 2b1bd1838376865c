"""Step times learned from an engine's own log, and how far off they are on other steps.

The learner is Foretune's predictor of one kernel, `foretune.models.predictor.Predictor`: a step is
a run whose sizes are its prompts, answers and their tokens. Steps with the same sizes are one row
with the median of their times, because the predictor takes the last of equal rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from foretune.datasets.runs import ordered_columns
from foretune.datasets.schema import SAMPLES, columns_of
from foretune.errors import UsageError
from foretune.models.predictor import Predictor
from foretune.plan.steps.minutes import (
    MIN_HALF_WIDTH,
    HeldOutSteps,
    held_out_sets,
    minutes_of,
    with_width_factor,
)

MIN_STEPS = 200
"""Fewer steps are not enough to learn from one part and judge on another."""
MAX_ROWS = 6000
"""Rows to learn from; of a longer log, a random sample."""

ANSWERS_ALONE = "answers alone"
PROMPTS_ALONE = "prompts alone"
BOTH = "both"
KINDS = (ANSWERS_ALONE, PROMPTS_ALONE, BOTH)
"""Kinds of steps: engines run different kernels in each."""


@dataclass(frozen=True)
class StepErrors:
    """Relative errors on held-out steps.

    Attributes:
        steps: number of held-out steps.
        median, mean, p95: of |predicted / measured - 1|.
        law_median: the same median of a linear law of tokens and requests.
        coverage: share of the steps within the 90 % interval, whose width comes from other minutes.
    """

    steps: int
    median: float
    mean: float
    p95: float
    law_median: float
    coverage: float


@dataclass(frozen=True)
class LearnedSteps:
    """A predictor of step times, and the steps that it learned from.

    Attributes:
        predictor: learned from all steps.
        runs: the steps, a row each, in the order of the log.
        errors: kind of step -> errors of a predictor that did not see the steps it was judged on.
    """

    predictor: Predictor
    runs: pd.DataFrame
    errors: Mapping[str, StepErrors]

    def predict_ms(self, problems: pd.DataFrame) -> np.ndarray:
        """Return milliseconds of steps; columns are ``problem.…`` of the log."""
        rows = problems.assign(
            kernel=self.predictor.kernel_name_, device=str(self.runs["device"].iloc[0])
        )
        return self.predictor.predict(rows)["time_ms"].to_numpy(dtype=float)


def learn_steps(runs: pd.DataFrame, seed: int = 0) -> LearnedSteps:
    """Learn step times from a table of steps, in the order in which they were logged.

    Raises UsageError if there are several kernels or devices, or too few steps.
    """
    for column in ("kernel", "device"):
        names = sorted(map(str, runs[column].unique()))
        if len(names) > 1:
            raise UsageError(
                f"the steps are of several {column}s, {', '.join(names)}: learn each alone"
            )
    if len(runs) < MIN_STEPS:
        raise UsageError(f"{len(runs)} steps are too few to learn from: log at least {MIN_STEPS}")

    # Judge on minutes of the log that the judged predictors did not see.
    runs = runs.reset_index(drop=True)
    held_out = predict_held_out(runs, seed=seed)
    errors = _errors(runs, held_out)

    # The predictor learns all steps; its intervals must hold in a minute that it has not seen.
    predictor = with_width_factor(_fit(runs, seed=seed), held_out.width_factor)
    return LearnedSteps(predictor, runs, errors)


def predict_held_out(runs: pd.DataFrame, seed: int = 0) -> HeldOutSteps:
    """Return predictions of all steps, each by a predictor that has not seen its minute."""
    measured_ms = runs["time_ms"].to_numpy(dtype=float)
    predicted_ms = np.empty(len(runs))
    high_ms = np.empty(len(runs))
    for is_held_out in held_out_sets(runs):
        predictor = _fit(runs[~is_held_out], seed=seed)
        predicted = predictor.predict(runs[is_held_out])
        predicted_ms[is_held_out] = predicted["time_ms"]
        high_ms[is_held_out] = predicted["time_ms_high"]
    return HeldOutSteps(
        block=minutes_of(runs),
        predicted_ms=predicted_ms,
        half_width=np.maximum(np.log(high_ms / predicted_ms), MIN_HALF_WIDTH),
        error=np.log(measured_ms / predicted_ms),
    )


def kinds_of(runs: pd.DataFrame) -> np.ndarray:
    """Return the kind of each step."""
    has_prompts = runs["problem.prompts"].to_numpy(dtype=float) > 0
    has_answers = runs["problem.answers"].to_numpy(dtype=float) > 0
    alone = np.where(has_prompts, PROMPTS_ALONE, ANSWERS_ALONE)
    return np.where(has_prompts & has_answers, BOTH, alone)


def _fit(runs: pd.DataFrame, seed: int) -> Predictor:
    """Return a predictor of the steps."""
    distinct = _distinct_steps(runs)
    if len(distinct) > MAX_ROWS:
        distinct = distinct.sample(MAX_ROWS, random_state=seed)
    predictor: Predictor = Predictor(seed=seed, read_as="none").fit(distinct)
    return predictor


def _distinct_steps(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per work of a step: the median of its times, and all of them."""
    sizes = columns_of(runs, "problem")
    groups = runs.groupby([*sizes, "kernel", "device"], sort=False, observed=True)["time_ms"]
    rows = groups.agg(time_ms="median", time_ms_samples=list).reset_index()
    rows = rows.rename(columns={"time_ms_samples": SAMPLES}).assign(status="ok")
    ordered: pd.DataFrame = rows[ordered_columns(rows.columns)]
    return ordered


def _errors(runs: pd.DataFrame, held_out: HeldOutSteps) -> dict[str, StepErrors]:
    """Return the errors on held-out steps, of each kind that there is."""
    measured_ms = runs["time_ms"].to_numpy(dtype=float)
    error = np.abs(held_out.predicted_ms / measured_ms - 1.0)
    law_error = np.abs(_held_out_law_ms(runs) / measured_ms - 1.0)
    is_inside = held_out.is_inside()

    kinds = kinds_of(runs)
    errors = {}
    for kind in KINDS:
        of_kind = kinds == kind
        if not of_kind.any():
            continue
        errors[kind] = StepErrors(
            steps=int(of_kind.sum()),
            median=float(np.median(error[of_kind])),
            mean=float(np.mean(error[of_kind])),
            p95=float(np.quantile(error[of_kind], 0.95)),
            law_median=float(np.median(law_error[of_kind])),
            coverage=float(np.mean(is_inside[of_kind])),
        )
    return errors


def _held_out_law_ms(runs: pd.DataFrame) -> np.ndarray:
    """Return the simplest law's times of all steps, each fitted to other minutes."""
    law_ms = np.empty(len(runs))
    for is_held_out in held_out_sets(runs):
        law_ms[is_held_out] = _law_ms(known=runs[~is_held_out], asked=runs[is_held_out])
    return law_ms


def _law_ms(known: pd.DataFrame, asked: pd.DataFrame) -> np.ndarray:
    """Return times of the simplest law: a constant, and one per request and token of each kind.

    No coefficient is negative; relative errors are made small.
    """
    sizes = columns_of(known, "problem")
    measured_ms = known["time_ms"].to_numpy(dtype=float)
    # Divided by the time, each row's terms should add up to 1.
    relative_terms = _law_terms(known[sizes]) / measured_ms[:, None]
    coefficients, _ = nnls(relative_terms, np.ones(len(known)))
    law_ms: np.ndarray = _law_terms(asked[sizes]) @ coefficients
    return law_ms


def _law_terms(sizes: pd.DataFrame) -> np.ndarray:
    """Return a row per step: 1, and its sizes."""
    ones = np.ones(len(sizes))
    return np.column_stack([ones, sizes.to_numpy(dtype=float)])
