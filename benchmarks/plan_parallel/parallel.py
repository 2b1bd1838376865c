"""The check of parallel layouts: predicted from operators, then run on this machine's cores.

No deployment with pipeline parallelism was ever published, and of tensor parallelism only whole
deployments are. Here both, and data parallelism, run on processes of this machine: operators are
measured at sizes on a grid, and the planner's own clock sums up steps of other sizes. As for
deployments, a few coefficients are fitted to measured steps: what operators leave out per layer,
and how much longer an exchange takes among others than by itself. Then steps of sizes that neither
saw are predicted, and run. What must hold is the order of the layouts.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from foretune.collect.timing import median_interval
from foretune.errors import MeasurementError
from foretune.plan.cost.steps import StepTimer, operator_table
from foretune.plan.cost.times import OperatorTimer
from foretune.plan.describe.description import ModelDescription
from foretune.support.progress import Progress
from plan_parallel.arrangement import (
    PRIOR_COEFFICIENTS,
    TERMS,
    Arrangement,
    RankMode,
    StepProblem,
    arrangements,
    step_of,
    step_terms,
    undisturbed_ms,
)
from plan_parallel.grid import QUICK_GRID, Grid, measure_operators
from plan_parallel.local_clock import rank_timers
from plan_parallel.ranks import RankGroup

TIE_MARGIN = 0.05
"""Times of layouts closer than this are no order that a prediction must get right."""
MIN_ROUNDS = 7
MAX_ROUNDS = 60
STEP_ERROR = 0.1
"""Spread of a step's log time that the coefficients do not explain."""
PRIOR_SCALE = np.array([0.3, 1.0, 0.2])
"""How far coefficients of `TERMS` usually lie from `PRIOR_COEFFICIENTS`."""
OUTPUT_TOLERANCE = 1e-3
"""Of outputs, relative to the largest: sums in another order, in 32 bits."""


def small_model(hidden: int, layers: int, kv_heads: int, intermediate: int) -> ModelDescription:
    """Return a dense model of heads 64 wide."""
    return ModelDescription(
        f"{layers} layers × {hidden}",
        layers=layers,
        hidden=hidden,
        heads=hidden // 64,
        kv_heads=kv_heads,
        head_dim=64,
        vocab=2000,
        intermediate=intermediate,
    )


_SMALL = small_model(256, 4, 2, 704)
_LARGE = small_model(1280, 2, 4, 3456)
_DEEP = small_model(128, 6, 2, 352)
_MIDDLE = small_model(512, 2, 2, 1408)
QUICK_FIT_PROBLEMS = (
    StepProblem(_DEEP, 4, 1, 60),
    StepProblem(_MIDDLE, 2, 24),
    StepProblem(_MIDDLE, 4, 1, 120),
)
"""Steps that coefficients are fitted to: one of many small layers, others of few large ones."""
QUICK_PROBLEMS = (
    StepProblem(_SMALL, 1, 80),
    StepProblem(_SMALL, 8, 1, 200),
    StepProblem(_LARGE, 4, 20),
    StepProblem(_LARGE, 2, 1, 200),
)
"""Prompts and answers, with weights small and large: exchanges weigh much and little."""


@dataclass(frozen=True)
class LayoutTimes:
    """One layout's step.

    Attributes:
        layout: its name.
        predicted_ms: from operators and coefficients.
        operators_ms: the sum of its operators, without coefficients.
        rounds_ms: measured, one entry per round.
        error: largest difference of its outputs from those of one rank, relative to the largest.
    """

    layout: str
    predicted_ms: float
    operators_ms: float
    rounds_ms: np.ndarray
    error: float

    @property
    def measured_ms(self) -> float:
        """Time that represents all rounds."""
        return undisturbed_ms(self.rounds_ms)


@dataclass(frozen=True)
class ProblemCheck:
    """All layouts of one step.

    Attributes:
        problem: the step.
        layouts: their times; one rank comes first.
    """

    problem: StepProblem
    layouts: Sequence[LayoutTimes]

    @property
    def regret(self) -> float:
        """How much slower the layout is that was predicted to be the fastest, as a share."""
        chosen = min(self.layouts, key=lambda layout: layout.predicted_ms)
        return chosen.measured_ms / min(layout.measured_ms for layout in self.layouts) - 1.0

    @property
    def rank_correlation(self) -> float:
        """Spearman's, between predicted and measured times."""
        from scipy.stats import spearmanr

        predicted = [layout.predicted_ms for layout in self.layouts]
        return float(spearmanr(predicted, [layout.measured_ms for layout in self.layouts])[0])

    @property
    def pairs(self) -> list[tuple[LayoutTimes, LayoutTimes]]:
        """Pairs whose order the measurements decide, the faster first.

        The interval of their ratio within rounds must lie beyond `NEAR`.
        """
        decided = []
        for first, second in combinations(self.layouts, 2):
            low, high = median_interval(second.rounds_ms / first.rounds_ms)
            if low > 1.0 + TIE_MARGIN:
                decided.append((first, second))
            elif high < 1.0 / (1.0 + TIE_MARGIN):
                decided.append((second, first))
        return decided

    @property
    def correct_pairs(self) -> int:
        """How many of `pairs` were predicted in the measured order."""
        return sum(faster.predicted_ms < slower.predicted_ms for faster, slower in self.pairs)

    @property
    def passed(self) -> bool:
        """Whether all `pairs` are in order: no layout is surely faster than a preferred one."""
        return self.correct_pairs == len(self.pairs)


@dataclass(frozen=True)
class ParallelCheck:
    """What a check found.

    Attributes:
        problems: one entry per step.
        operators: how many were measured.
        coefficients: of `plan_parallel.arrangement.TERMS`.
        seen_share: share of the steps' operators that were measured at the very same sizes.
        ranks: processes that took part.
        seconds: that it took.
    """

    problems: Sequence[ProblemCheck]
    operators: int
    coefficients: Sequence[float]
    seen_share: float
    ranks: int
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the order of layouts was predicted for every step, and there was one."""
        decided = any(check.pairs for check in self.problems)
        return decided and all(check.passed for check in self.problems)

    @property
    def median_error(self) -> float:
        """Of predicted times, as a share."""
        table = self.table()
        return float((table["predicted_ms"] / table["measured_ms"] - 1.0).abs().median())

    def table(self) -> pd.DataFrame:
        """Return one row per step and layout.

        Columns: ``problem, layout, operators_ms, predicted_ms, measured_ms``,
        ``predicted_ratio`` and ``measured_ratio`` to one rank, ``low, high`` (95 % interval of the
        measured ratio's median over rounds), ``error`` of the outputs, ``rounds``.
        """
        rows = []
        for check in self.problems:
            baseline = check.layouts[0]
            for layout in check.layouts:
                ratios = layout.rounds_ms / baseline.rounds_ms
                low, high = median_interval(ratios)
                rows.append(
                    {
                        "problem": str(check.problem),
                        "layout": layout.layout,
                        "operators_ms": layout.operators_ms,
                        "predicted_ms": layout.predicted_ms,
                        "measured_ms": layout.measured_ms,
                        "predicted_ratio": layout.predicted_ms / baseline.predicted_ms,
                        "measured_ratio": layout.measured_ms / baseline.measured_ms,
                        "low": low,
                        "high": high,
                        "error": layout.error,
                        "rounds": len(ratios),
                    }
                )
        return pd.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "held": self.passed,
            "median_error": self.median_error,
            "operators": self.operators,
            "coefficients": dict(zip(TERMS, map(float, self.coefficients), strict=True)),
            "seen": self.seen_share,
            "ranks": self.ranks,
            "seconds": self.seconds,
            "problems": [
                {
                    "problem": str(check.problem),
                    "held": check.passed,
                    "regret": check.regret,
                    "rank_correlation": check.rank_correlation,
                    "pairs": len(check.pairs),
                    "kept": check.correct_pairs,
                }
                for check in self.problems
            ],
            "layouts": self.table().to_dict("records"),
        }


def check_parallel(
    problems: Sequence[StepProblem] = QUICK_PROBLEMS,
    fit_problems: Sequence[StepProblem] = QUICK_FIT_PROBLEMS,
    grid: Grid = QUICK_GRID,
    seconds: float = 40.0,
    ranks: int = 2,
    progress: Progress | None = None,
    seed: int = 0,
) -> ParallelCheck:
    """Predict steps in every layout of some ranks, run them, and compare.

    Args:
        problems: steps that are predicted, of sizes that are neither on the grid nor in lessons.
        fit_problems: steps that coefficients are fitted to.
        grid: sizes that operators are measured at.
        seconds: for measuring, half for operators and half for steps; starting processes and
            building models comes on top, and a slow machine takes longer.
        ranks: processes; an even number.
        progress: is told.
        seed: of weights and requests.

    Raises:
        MissingExtra: torch is not installed.
        MeasurementError: torch lacks torch.distributed, a process fails, or a layout computes
            something else than one rank.
    """
    with RankGroup(ranks) as group:
        return check_on_group(group, problems, fit_problems, grid, seconds, progress, seed)


def check_on_group(
    group: RankGroup,
    problems: Sequence[StepProblem] = QUICK_PROBLEMS,
    fit_problems: Sequence[StepProblem] = QUICK_FIT_PROBLEMS,
    grid: Grid = QUICK_GRID,
    seconds: float = 40.0,
    progress: Progress | None = None,
    seed: int = 0,
) -> ParallelCheck:
    """Do what `check_parallel` does on processes that run already."""
    start = time.monotonic()
    box_s = seconds / 2 / (len(problems) + len(fit_problems))
    runs = measure_operators(group, grid, seconds / 2, progress)
    operators = rank_timers(runs)
    timers = {mode: StepTimer(timer) for mode, timer in operators.items()}
    if progress:
        progress.start("steps", len(problems) + len(fit_problems))
    fit_checks = []
    found = []
    for problem in fit_problems:
        fit_checks.append(_check_problem(group, problem, timers, PRIOR_COEFFICIENTS, box_s, seed))
        if progress:
            progress.advance(str(problem))
    coefficients = fit_coefficients(fit_checks, timers, len(group))
    for problem in problems:
        found.append(_check_problem(group, problem, timers, coefficients, box_s, seed))
        if progress:
            progress.advance(str(problem))
    return ParallelCheck(
        found,
        len(runs),
        coefficients.tolist(),
        _seen_share(problems, len(group), operators["alone"]),
        len(group),
        time.monotonic() - start,
    )


def fit_coefficients(
    fit_checks: Sequence[ProblemCheck], timers: Mapping[RankMode, StepTimer], ranks: int
) -> np.ndarray:
    """Return the coefficients of the terms that fit the measured times of steps.

    The loss is robust, on logarithms of times; `PRIOR_SCALE` keeps the coefficients near
    `PRIOR_COEFFICIENTS`.
    """
    from scipy.optimize import least_squares

    terms = []
    measured = []
    for check in fit_checks:
        compared = [each for each in arrangements(ranks) if each.is_applicable(check.problem)]
        for each, layout in zip(compared, check.layouts, strict=True):
            terms.append(step_terms(check.problem, each, timers))
            measured.append(layout.measured_ms)
    if not terms:
        return PRIOR_COEFFICIENTS
    rows = np.array(terms)
    target = np.log(measured)

    def residuals(coefficients: np.ndarray) -> np.ndarray:
        prior = (coefficients - PRIOR_COEFFICIENTS) / PRIOR_SCALE
        return np.concatenate([(np.log(rows @ coefficients) - target) / STEP_ERROR, prior])

    lower_bounds = np.array([0.1, 0.0, 0.0])
    fitted = least_squares(
        residuals, PRIOR_COEFFICIENTS + 1e-3, bounds=(lower_bounds, np.inf), loss="soft_l1"
    )
    return np.asarray(fitted.x)


def _check_problem(
    group: RankGroup,
    problem: StepProblem,
    timers: Mapping[RankMode, StepTimer],
    coefficients: np.ndarray,
    box_s: float,
    seed: int,
) -> ProblemCheck:
    """Return a step's predictions, made before it first runs, and its times."""
    compared = [each for each in arrangements(len(group)) if each.is_applicable(problem)]
    terms = [step_terms(problem, each, timers) for each in compared]
    group.call("prepare", problem, compared, seed)
    errors = _errors(group, problem, compared)
    rounds = _rounds(group, compared, box_s)
    return ProblemCheck(
        problem,
        [
            LayoutTimes(
                each.name,
                float(values @ coefficients),
                float(values @ PRIOR_COEFFICIENTS),
                rounds[:, i],
                error,
            )
            for i, (each, values, error) in enumerate(zip(compared, terms, errors, strict=True))
        ],
    )


def _errors(group: RankGroup, problem: StepProblem, compared: Sequence[Arrangement]) -> list[float]:
    """Return how far each layout's outputs are from those of one rank, the first."""
    outputs = [
        np.concatenate([part for part in group.call("logits", each) if part is not None])
        for each in compared
    ]
    largest = np.abs(outputs[0]).max()
    errors = [float(np.abs(output - outputs[0]).max() / largest) for output in outputs]
    for each, error in zip(compared, errors, strict=True):
        if not error < OUTPUT_TOLERANCE:
            raise MeasurementError(
                f"{each.name} computes something else than one rank on {problem}: outputs differ "
                f"by {error:.1e} of the largest"
            )
    return errors


def _rounds(group: RankGroup, compared: Sequence[Arrangement], box_s: float) -> np.ndarray:
    """Return times in milliseconds (rounds, layouts), each round in a new order."""
    rng = np.random.default_rng(0)
    rounds: list[np.ndarray] = []
    deadline = time.monotonic() + box_s
    while len(rounds) < MAX_ROUNDS:
        if len(rounds) >= MIN_ROUNDS and time.monotonic() > deadline:
            break
        times = np.empty(len(compared))
        for i in rng.permutation(len(compared)):
            times[i] = max(group.call("step", compared[i]))
        rounds.append(times)
    return np.stack(rounds[1:])  # the first one warms up


def _seen_share(problems: Sequence[StepProblem], ranks: int, timer: OperatorTimer) -> float:
    """Return the share of the steps' operators that the grid holds at the very same sizes."""
    operators = [
        operator
        for problem in problems
        for each in arrangements(ranks)
        if each.is_applicable(problem)
        for operator in step_of(problem, each).operators()
    ]
    return float(np.mean(timer.times(operator_table(operators)).source == "measured"))
