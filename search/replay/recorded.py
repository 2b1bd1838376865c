"""Recorded spaces: every configuration of one kernel, problem and device, already measured."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.runs import device_of, newest_runs, problems_of, read_runs, to_measurements
from foretune.datasets.schema import columns_of
from foretune.device import Device
from foretune.errors import RunTableError
from foretune.measurement import Measurement
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.space import ListedSpace, SearchSpace


@dataclass(frozen=True, eq=False)
class RecordedSpace:
    """A fully measured search space, for replays.

    ``name`` is the file's, with device and problem if it has several spaces. ``measurements`` are
    by configuration number, failures included.
    """

    name: str
    device: Device
    space: SearchSpace
    measurements: tuple[Measurement, ...]
    objective: Objective = Objective.TIME

    def __len__(self) -> int:
        return len(self.space)

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.measurements[0].kernel

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.measurements[0].problem

    @cached_property
    def values(self) -> np.ndarray:
        """Objective by configuration number; infinite for failures and unmetered runs."""
        values = np.array([self.objective.value_of(m) for m in self.measurements])
        return np.where(np.isnan(values), np.inf, values)

    @cached_property
    def optimum(self) -> float:
        """The smallest objective."""
        return float(self.values.min())

    def count_within(self, share: float = 0.95) -> int:
        """Return the number of configurations with optimum / objective ≥ ``share``."""
        return int((self.optimum / self.values >= share).sum())


def read_spaces(
    path: str | os.PathLike[str], objective: Objective = Objective.TIME
) -> list[RecordedSpace]:
    """Return the recorded spaces of a run table, named after the file.

    Raises RunTableError if the file cannot be read, or one of its spaces cannot be searched.
    """
    return recorded_spaces(read_runs(path), Path(path).stem, objective)


def recorded_spaces(
    runs: pd.DataFrame, name: str, objective: Objective = Objective.TIME
) -> list[RecordedSpace]:
    """Return one recorded space per kernel, device and problem of ``runs``.

    The newest row of each configuration counts. Rows may lack parameters that do not apply
    (`ListedSpace`). Raises RunTableError if there is no row, or none has a value.
    """
    if runs.empty:
        raise RunTableError(f"{name} holds no rows: there is nothing to search")
    problems = problems_of(runs)
    whose = list(zip(runs["kernel"], runs["device"], problems, strict=True))
    groups: dict[tuple[str, str, Problem], list[int]] = {}
    for position, key in enumerate(whose):
        groups.setdefault(key, []).append(position)
    if len(groups) == 1:
        return [_recorded(runs, name, objective)]
    return [
        _recorded(runs.iloc[rows], f"{name} ({kernel}, {device}, {problem})", objective)
        for (kernel, device, problem), rows in groups.items()
    ]


def _recorded(runs: pd.DataFrame, name: str, objective: Objective) -> RecordedSpace:
    # Parameters of the file's other kernels are empty here throughout.
    runs = newest_runs(runs).dropna(axis=1, how="all")
    measurements = to_measurements(runs)
    conditional = bool(runs[columns_of(runs, "config")].isna().any(axis=None))
    make_space = ListedSpace if conditional else SearchSpace.from_configs
    space = make_space(m.config for m in measurements)
    position = {config: i for i, config in enumerate(space)}  # `space.index` is slow for many
    in_order = sorted(measurements, key=lambda m: position[m.config])
    recorded = RecordedSpace(name, device_of(runs), space, tuple(in_order), objective)
    if not np.isfinite(recorded.optimum):
        missing = " with power_w" if objective.needs_power else ""
        raise RunTableError(
            f"{name}: none of {len(space):,} configurations ran{missing}: there is nothing to find"
        )
    return recorded
