"""Watts that operators draw, from how much of their GPU they use.

Power is a share of the board's limit: what a GPU draws that is awake, plus what computing and
reading memory add, each by how much of its peak rate is used, never more than the limit. Boards
differ in their limits far more than in these shares: GPUs whose power nobody measured take those of
their generation, else the mean of all. Learners that know the sizes of operators come nearer to the
recorded powers of the same GPU; on another one most are further off (`benchmarks/plan_power.py`).
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Self

import numpy as np
import pandas as pd

from foretune.device import Device
from foretune.features.roofline import row_limits_ms
from foretune.plan.cost.kinds import family_of


@dataclass(frozen=True)
class MeteredSystem:
    """A system whose power was measured.

    Attributes:
        architecture: of its GPU.
        active_idle_share: share of the limit that the GPU draws awake but with next to nothing to
            do.
    """

    architecture: str
    active_idle_share: float


METERED_SYSTEMS = {
    "h200_sxm": MeteredSystem("sm_90", 0.187),
    "b200_sxm": MeteredSystem("sm_100", 0.254),
}
"""Awake is the lowest hundredth of all powers measured on a system (`benchmarks/plan_power.py`
prints them)."""
SIMILAR_KERNELS = {
    "mla_prefill": "attention_prefill",
    "gdn": "attention_prefill",
    "mla_decode": "attention_decode",
}
"""Kernel -> the one whose form it takes; others without one of their own take that of ``gemm``."""
OUTLIER_SCALE = 0.05
"""Log error beyond which a measurement counts less and less: several per cent of the recorded
powers are not of the operator that they are recorded for."""
LOWER_BOUNDS, UPPER_BOUNDS = (0.0, 0.2, 0.0, 0.2), (6.0, 3.0, 6.0, 3.0)
INITIAL_VALUES = ((0.8, 0.8, 0.6, 0.8), (0.3, 0.5, 0.3, 0.5), (1.0, 0.5, 0.1, 1.0))


@dataclass(frozen=True)
class PowerModel:
    """What operators of one kernel draw beyond an awake GPU, as a share of the board's limit.

    Attributes:
        compute: added where computing goes at its peak rate.
        compute_exponent: of the share of that rate which is used.
        memory: added where memory is read at its peak rate.
        memory_exponent: of the share of that rate which is used.
    """

    compute: float
    compute_exponent: float
    memory: float
    memory_exponent: float

    def share(self, utilization: np.ndarray, active_idle_share: np.ndarray | float) -> np.ndarray:
        """Return the shares of the limit that are drawn.

        Args:
            utilization: shares of the peak rates of computing and of memory (rows, 2).
            active_idle_share: share of the limit that an awake GPU draws.
        """
        clipped = np.clip(np.nan_to_num(utilization), 0.0, 1.0)
        computing = self.compute * clipped[:, 0] ** self.compute_exponent
        reading = self.memory * clipped[:, 1] ** self.memory_exponent
        return np.minimum(active_idle_share + computing + reading, 1.0)

    @classmethod
    def fit(
        cls, utilization: np.ndarray, active_idle_share: np.ndarray | float, measured: np.ndarray
    ) -> Self:
        """Return the form nearest to most of the measured shares.

        Args:
            utilization: as in `share`.
            active_idle_share: as in `share`.
            measured: shares of the limit; those far from what most say hardly count.
        """
        from scipy.optimize import least_squares

        found = [
            least_squares(
                lambda values: np.log(
                    cls(*values).share(utilization, active_idle_share) / measured
                ),
                start,
                bounds=(LOWER_BOUNDS, UPPER_BOUNDS),
                loss="cauchy",
                f_scale=OUTLIER_SCALE,
            )
            for start in INITIAL_VALUES
        ]
        return cls(*min(found, key=lambda fit: fit.cost).x.tolist())


PowerModels = Mapping[str, Mapping[str, PowerModel]]
"""Kernel -> system -> the form that fits what was measured there."""


@dataclass(frozen=True)
class OperatorWatts:
    """What operators draw, one entry per row of the table that was asked about.

    Attributes:
        watts: mean over an operator's time; NaN on a GPU whose limit is not known.
        measured: whether the power of its kernel was measured on this system.
        compute_bound: whether computing limits it, not memory.
    """

    watts: np.ndarray
    measured: np.ndarray
    compute_bound: np.ndarray


class OperatorPower:
    """Answers what operators draw on a system.

    Args:
        device: of the system.
        system: its short name.
        models: those that were measured; None takes the shipped ones.
    """

    def __init__(self, device: Device, system: str = "", models: PowerModels | None = None) -> None:
        self.device, self.system = device, system
        self._models = shipped_models() if models is None else models
        self.active_idle_share = float(
            np.mean(
                [
                    METERED_SYSTEMS[name].active_idle_share
                    for name in self._similar_systems(METERED_SYSTEMS)
                ]
            )
        )
        """Share of the limit that the GPU draws while it waits for its next operator."""

    @property
    def limit_w(self) -> float:
        """The limit of the board, watts; NaN where it is not known."""
        return self.device.specs.get("power_limit_w", float("nan"))

    @property
    def active_idle_w(self) -> float:
        """What a GPU draws that waits for its next operator, watts."""
        return self.limit_w * self.active_idle_share

    def watts(self, operators: pd.DataFrame, ms: np.ndarray) -> OperatorWatts:
        """Return what operators draw that take ``ms`` milliseconds.

        Args:
            operators: in run-table columns, as `OperatorTimer.times` takes them.
            ms: of each.
        """
        share, measured = np.empty(len(operators)), np.empty(len(operators), dtype=bool)
        compute_bound = np.empty(len(operators), dtype=bool)
        specs = {f"device.{name}": value for name, value in self.device.specs.items()}
        for kernel, index in operators.groupby("kernel", sort=False).indices.items():
            rows = operators.iloc[index].dropna(axis=1, how="all").assign(**specs)
            utilization = row_limits_ms(family_of(str(kernel)), rows) / ms[index, None]
            models = self._models[model_kernel(str(kernel), self._models)]
            each = [
                models[name].share(utilization, self.active_idle_share)
                for name in self._similar_systems(models)
            ]
            share[index] = np.mean(each, axis=0)
            measured[index] = self.system in self._models.get(str(kernel), ())
            compute_bound[index] = utilization[:, 0] > utilization[:, 1]
        return OperatorWatts(share * self.limit_w, measured, compute_bound)

    def _similar_systems(self, systems: Iterable[str]) -> list[str]:
        """Return the measured systems most like this: itself, its generation's, else all."""
        names = list(systems)
        mine = _generation(self.device.architecture)
        same_generation = [n for n in names if _generation(METERED_SYSTEMS[n].architecture) == mine]
        return [n for n in names if n == self.system] or same_generation or names


def model_kernel(kernel: str, models: PowerModels) -> str:
    """Return the kernel whose form operators of ``kernel`` take."""
    similar = SIMILAR_KERNELS.get(kernel, kernel)
    return similar if similar in models else "gemm"


@cache
def shipped_models() -> dict[str, dict[str, PowerModel]]:
    """Return the shipped forms."""
    text = files("foretune.plan.cost").joinpath("power.csv").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found: dict[str, dict[str, PowerModel]] = {}
    for row in csv.DictReader(lines):
        form = PowerModel(*(float(row[field.name]) for field in fields(PowerModel)))
        found.setdefault(row["kernel"], {})[row["system"]] = form
    return found


def model_lines(models: PowerModels) -> list[str]:
    """Return the lines of a table that `shipped_models` reads."""
    rows = [
        [kernel, system, *(f"{value:.3f}" for value in astuple(form))]
        for kernel, several in models.items()
        for system, form in several.items()
    ]
    names = ["kernel", "system", *(field.name for field in fields(PowerModel))]
    return [",".join(row) for row in [names, *rows]]


def _generation(architecture: str) -> str:
    """Return what GPUs of one generation share: ``sm_10`` of ``sm_100`` and ``sm_103``."""
    return architecture[:-1]
