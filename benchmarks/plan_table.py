"""Measured deployments with their physics, and folds of them."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from plan_beside import ask

from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.measured_deployments import (
    MeasuredDeployments,
    read_measured_deployments,
)

MIN_ROOFLINE_SHARE = 0.9
"""Of a step's roofline time: shorter times per token are impossible at the stated load."""
SOME = 5
"""Folds of configurations; systems and models are held out one by one."""


@dataclass
class Table:
    """Measured deployments and their physics.

    Attributes:
        data: Measured deployments.
        rows: Predictions of the physics.
        seconds: Time that these took.
        rival: AIConfigurator's estimates of the same rows, if it was asked.
    """

    data: MeasuredDeployments
    rows: pd.DataFrame
    seconds: float
    rival: pd.DataFrame | None = None

    @classmethod
    def read(cls, path: Path, clocks: StepTimerFactory, rival: Path | None) -> "Table":
        """Return those of a file."""
        data = read_measured_deployments(path)
        start = time.perf_counter()
        rows = analytic_times(data.deployments, clocks)
        seconds = time.perf_counter() - start
        answers = None
        if rival is not None:
            answers = ask(rival, path).iloc[data.rows].reset_index(drop=True)
        return cls(data, rows, seconds, answers)

    @property
    def possible(self) -> np.ndarray:
        """Which rows take at least the roofline's time per token: others ran another load.

        Drafted tokens may be faster, and what was drafted is not known.
        """
        drafts = np.array([deployment.speculative for deployment in self.data.deployments])
        least_ms = MIN_ROOFLINE_SHARE * self.rows["decode_bound"].to_numpy()
        possible: np.ndarray = drafts | (self.data.measured["tpot_ms"].to_numpy() >= least_ms)
        return possible


def folds(groups: np.ndarray, count: int) -> np.ndarray:
    """Return a fold per row: all rows of a group in the same one, at random."""
    codes, names = pd.factorize(groups)
    order = np.random.default_rng(0).permutation(len(names))
    fold_of = np.empty(len(names), dtype=int)
    fold_of[order] = np.arange(len(names)) % count
    result: np.ndarray = fold_of[codes]
    return result
