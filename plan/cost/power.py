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
class Metered:
    """A system whose power was measured.

    Attributes:
        architecture: of its GPU.
        awake: share of the limit that the GPU draws awake but with next to nothing to do.
    """

    architecture: str
    awake: float


METERED = {"h200_sxm": Metered("sm_90", 0.187), "b200_sxm": Metered("sm_100", 0.254)}
"""Awake is the lowest hundredth of all powers measured on a system (`benchmarks/plan_power.py`
prints them)."""
ALIKE = {
    "mla_prefill": "attention_prefill",
    "gdn": "attention_prefill",
    "mla_decode": "attention_decode",
}
"""Kernel -> the one whose form it takes; others without one of their own take that of ``gemm``."""
SPREAD = 0.05
"""Log error beyond which a measurement counts less and less: several per cent of the recorded
powers are not of the operator that they are recorded for."""
LEAST, MOST = (0.0, 0.2, 0.0, 0.2), (6.0, 3.0, 6.0, 3.0)
STARTS = ((0.8, 0.8, 0.6, 0.8), (0.3, 0.5, 0.3, 0.5), (1.0, 0.5, 0.1, 1.0))


@dataclass(frozen=True)
class PowerForm:
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

    def share(self, used: np.ndarray, awake: np.ndarray | float) -> np.ndarray:
        """Return the shares of the limit that are drawn.

        Args:
            used: shares of the peak rates of computing and of memory (rows, 2).
            awake: share of the limit that an awake GPU draws.
        """
        some = np.clip(np.nan_to_num(used), 0.0, 1.0)
        computing = self.compute * some[:, 0] ** self.compute_exponent
        reading = self.memory * some[:, 1] ** self.memory_exponent
        return np.minimum(awake + computing + reading, 1.0)

    @classmethod
    def fit(cls, used: np.ndarray, awake: np.ndarray | float, measured: np.ndarray) -> Self:
        """Return the form nearest to most of the measured shares.

        Args:
            used: as in `share`.
            awake: as in `share`.
            measured: shares of the limit; those far from what most say hardly count.
        """
        from scipy.optimize import least_squares

        found = [
            least_squares(
                lambda values: np.log(cls(*values).share(used, awake) / measured),
                start, bounds=(LEAST, MOST), loss="cauchy", f_scale=SPREAD,
            )
            for start in STARTS
        ]  # fmt: skip
        return cls(*min(found, key=lambda fit: fit.cost).x.tolist())


Forms = Mapping[str, Mapping[str, PowerForm]]
"""Kernel -> system -> the form that fits what was measured there."""


@dataclass(frozen=True)
class OperatorWatts:
    """What operators draw, one entry per row of the table that was asked about.

    Attributes:
        watts: mean over an operator's time; NaN on a GPU whose limit is not known.
        measured: whether the power of its kernel was measured on this system.
        computes: whether computing limits it, not memory.
    """

    watts: np.ndarray
    measured: np.ndarray
    computes: np.ndarray


class OperatorPower:
    """Answers what operators draw on a system.

    Args:
        device: of the system.
        system: its short name.
        forms: those that were measured; None takes the shipped ones.
    """

    def __init__(self, device: Device, system: str = "", forms: Forms | None = None) -> None:
        self.device, self.system = device, system
        self._forms = measured_forms() if forms is None else forms
        self.awake = float(np.mean([METERED[name].awake for name in self._nearest(METERED)]))
        """Share of the limit that the GPU draws while it waits for its next operator."""

    @property
    def limit_w(self) -> float:
        """The limit of the board, watts; NaN where it is not known."""
        return self.device.specs.get("power_limit_w", float("nan"))

    @property
    def awake_w(self) -> float:
        """What a GPU draws that waits for its next operator, watts."""
        return self.limit_w * self.awake

    def watts(self, operators: pd.DataFrame, ms: np.ndarray) -> OperatorWatts:
        """Return what operators draw that take ``ms`` milliseconds.

        Args:
            operators: in run-table columns, as `OperatorClock.times` takes them.
            ms: of each.
        """
        share, measured = np.empty(len(operators)), np.empty(len(operators), dtype=bool)
        computes = np.empty(len(operators), dtype=bool)
        specs = {f"device.{name}": value for name, value in self.device.specs.items()}
        for kernel, index in operators.groupby("kernel", sort=False).indices.items():
            rows = operators.iloc[index].dropna(axis=1, how="all").assign(**specs)
            used = row_limits_ms(family_of(str(kernel)), rows) / ms[index, None]
            forms = self._forms[form_of(str(kernel), self._forms)]
            each = [forms[name].share(used, self.awake) for name in self._nearest(forms)]
            share[index] = np.mean(each, axis=0)
            measured[index] = self.system in self._forms.get(str(kernel), ())
            computes[index] = used[:, 0] > used[:, 1]
        return OperatorWatts(share * self.limit_w, measured, computes)

    def _nearest(self, systems: Iterable[str]) -> list[str]:
        """Return the measured systems most like this: itself, its generation's, else all."""
        everyone = list(systems)
        mine = _generation(self.device.architecture)
        kin = [n for n in everyone if _generation(METERED[n].architecture) == mine]
        return [n for n in everyone if n == self.system] or kin or everyone


def form_of(kernel: str, forms: Forms) -> str:
    """Return the kernel whose form operators of ``kernel`` take."""
    like = ALIKE.get(kernel, kernel)
    return like if like in forms else "gemm"


@cache
def measured_forms() -> dict[str, dict[str, PowerForm]]:
    """Return the shipped forms."""
    text = files("foretune.plan.cost").joinpath("power.csv").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found: dict[str, dict[str, PowerForm]] = {}
    for row in csv.DictReader(lines):
        form = PowerForm(*(float(row[field.name]) for field in fields(PowerForm)))
        found.setdefault(row["kernel"], {})[row["system"]] = form
    return found


def form_lines(forms: Forms) -> list[str]:
    """Return the lines of a table that `measured_forms` reads."""
    rows = [
        [kernel, system, *(f"{value:.3f}" for value in astuple(form))]
        for kernel, several in forms.items()
        for system, form in several.items()
    ]
    names = ["kernel", "system", *(field.name for field in fields(PowerForm))]
    return [",".join(row) for row in [names, *rows]]


def _generation(architecture: str) -> str:
    """Return what GPUs of one generation share: ``sm_10`` of ``sm_100`` and ``sm_103``."""
    return architecture[:-1]
