"""Efficiency of every configuration on every problem."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from foretune.datasets.runs import newest_runs, problems_of, to_measurements
from foretune.datasets.schema import columns_of
from foretune.errors import UsageError
from foretune.measurement import Status
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.space import Configuration

DECORATOR_TAGS = ("specialized", "timed", "reference")
"""Parameters that the Triton decorator adds to a problem; callers of a kernel do not know them."""
PRIOR_FAILURES = 3
"""Failures added to a configuration's record when its unmeasured pairs are estimated, so that one
good measurement does not make it the best everywhere."""


@dataclass(frozen=True)
class EfficiencyTable:
    """A problem's best value divided by a configuration's value: 1 for the best configuration.

    `efficiency` has shape (problems, configs): 0 if it failed, NaN if it was not measured. Problems
    on which no configuration ran are excluded and counted.
    """

    kernel: str
    device: str
    objective: Objective
    problems: list[Problem]
    configs: list[Configuration]
    efficiency: npt.NDArray[np.float64]
    excluded_problems: int = 0


def efficiency_table(runs: pd.DataFrame, objective: Objective = Objective.TIME) -> EfficiencyTable:
    """Return the table of one kernel on one device from its newest runs.

    Raises UsageError if there are several kernels or devices, or no run succeeded (or was metered).
    """
    kernel = _single_value(runs, "kernel")
    device = _single_value(runs, "device")
    runs = newest_runs(runs).reset_index(drop=True)

    # One row per problem, one column per configuration.
    problem, problem_rows = _group_numbers(runs, "problem")
    config, config_rows = _group_numbers(runs, "config")
    configs = [m.config for m in to_measurements(runs.iloc[config_rows])]
    value = np.full((len(problem_rows), len(configs)), np.nan)
    value[problem, config] = _objective_values(runs, objective)

    # Problems on which nothing ran say nothing of configurations.
    ran = np.isfinite(value).any(axis=1)
    if not ran.any():
        why = "no run succeeded" if not objective.needs_power else "no run has a power_w"
        raise UsageError(f"{why}: nothing can be chosen by {objective.value}")
    value = value[ran]
    problems = problems_of(runs.iloc[problem_rows[ran]])
    best = np.nanmin(value, axis=1, keepdims=True)
    problems, efficiency = _merge_alike(problems, best / value)

    # Not the order of the file: the same measurements make the same function.
    rows = sorted(range(len(problems)), key=lambda i: problems[i].id)
    columns = sorted(range(len(configs)), key=lambda i: configs[i].id)
    return EfficiencyTable(
        kernel=kernel,
        device=device,
        objective=objective,
        problems=[problems[i] for i in rows],
        configs=[configs[i] for i in columns],
        efficiency=efficiency[np.ix_(rows, columns)],
        excluded_problems=int((~ran).sum()),
    )


def fill_missing(efficiency: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the efficiencies with unmeasured pairs estimated cautiously."""
    measured = (~np.isnan(efficiency)).sum(axis=0)
    means = np.nansum(efficiency, axis=0) / (measured + PRIOR_FAILURES)
    return np.where(np.isnan(efficiency), means, efficiency)


def _merge_alike(
    problems: Sequence[Problem], efficiency: npt.NDArray[np.float64]
) -> tuple[list[Problem], npt.NDArray[np.float64]]:
    """Drop the parameters that callers do not know; average problems that become equal."""
    rows_of_problem: dict[Problem, list[int]] = {}
    for row, problem in enumerate(problems):
        hidden = DECORATOR_TAGS if "specialized" in problem else ()
        known = Problem({name: value for name, value in problem.items() if name not in hidden})
        rows_of_problem.setdefault(known, []).append(row)

    # The mean of what was measured; NaN if nothing was.
    merged = np.full((len(rows_of_problem), efficiency.shape[1]), np.nan)
    for number, rows in enumerate(rows_of_problem.values()):
        total = np.nansum(efficiency[rows], axis=0)
        n_measured = np.isfinite(efficiency[rows]).sum(axis=0)
        np.divide(total, n_measured, out=merged[number], where=n_measured > 0)
    return list(rows_of_problem), merged


def _single_value(runs: pd.DataFrame, column: str) -> str:
    names = sorted(map(str, runs[column].unique()))
    if len(names) != 1:
        listed = ", ".join(names) or "none"
        raise UsageError(f"a function is for one {column}, but these runs have {listed}: name one")
    return names[0]


def _objective_values(runs: pd.DataFrame, objective: Objective) -> npt.NDArray[np.float64]:
    """Return the objective of each run: infinite if it failed, NaN if unknown."""
    ran = (runs["status"].astype(object) == Status.OK.value).to_numpy()
    time_ms = runs["time_ms"].to_numpy(dtype=float)
    power_w = np.full(len(runs), np.nan)
    if "power_w" in runs:
        power_w = runs["power_w"].to_numpy(dtype=float)
    return np.where(ran, objective.compute(time_ms, power_w), np.inf)


def _group_numbers(
    runs: pd.DataFrame, group: str
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the group number of each row, and the first row of each group."""
    columns = columns_of(runs, group)
    if not columns:
        return np.zeros(len(runs), dtype=np.intp), np.zeros(1, dtype=np.intp)
    number = runs.groupby(columns, sort=False, dropna=False, observed=True).ngroup().to_numpy()
    return number, np.unique(number, return_index=True)[1]


@dataclass(frozen=True)
class Score:
    """Efficiency of choices over problems.

    ``kept`` is the mean over measured choices (0 for failures, NaN if none was measured), ``worst``
    the smallest of them, ``at_least`` the mean if unmeasured choices fail.
    """

    kept: float
    at_least: float
    worst: float
    problems: int
    unmeasured: int

    @classmethod
    def of_choices(
        cls, efficiency: npt.NDArray[np.float64], chosen: Sequence[int] | npt.NDArray[np.intp]
    ) -> "Score":
        """Return the score of one column of `EfficiencyTable.efficiency` per problem."""
        kept = efficiency[np.arange(len(efficiency)), np.asarray(chosen, dtype=np.intp)]
        measured = kept[~np.isnan(kept)]
        return cls(
            kept=float(measured.mean()) if len(measured) else np.nan,
            at_least=float(measured.sum() / len(kept)),
            worst=float(measured.min()) if len(measured) else np.nan,
            problems=len(kept),
            unmeasured=int(np.isnan(kept).sum()),
        )
