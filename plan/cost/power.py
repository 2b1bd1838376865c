"""Power of operators, from their use of the GPU's compute and memory.

Power is a share of the board's limit: the active idle share plus terms for the utilization of
compute and memory, capped at the limit. Boards differ more in their limits than in these shares.
GPUs without power measurements take the shares of their generation, else the mean of all.
Predictors trained on operator sizes are more accurate on the same GPU, and usually worse on another
(`benchmarks/plan_power.py`).
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files

import numpy as np
import pandas as pd

from foretune.datasets.runs import with_specs_of
from foretune.device import Device
from foretune.features.roofline import row_limits_ms
from foretune.plan.cost.kinds import family_of

METERED_SYSTEMS = {
    "h200_sxm": ("sm_90", 0.187),
    "b200_sxm": ("sm_100", 0.254),
}
"""System with measured power -> architecture, and share of the limit that an awake GPU draws with
almost no load: the 1st percentile of all powers (printed by `benchmarks/plan_power.py`)."""
SIMILAR_KERNELS = {
    "mla_prefill": "attention_prefill",
    "gdn": "attention_prefill",
    "mla_decode": "attention_decode",
}
"""Kernel -> kernel whose power model it uses; others without one use that of ``gemm``."""


@dataclass(frozen=True)
class PowerModel:
    """Power of one kernel's operators beyond active idle, as a share of the board's limit.

    ``compute`` and ``memory`` are added at their peak rates; the utilization has exponents.
    """

    compute: float
    compute_exponent: float
    memory: float
    memory_exponent: float

    def share(self, utilization: np.ndarray, active_idle_share: np.ndarray | float) -> np.ndarray:
        """Return the drawn share of the limit, for utilizations of compute and memory (rows, 2)."""
        clipped = np.clip(np.nan_to_num(utilization), 0.0, 1.0)
        computing = self.compute * clipped[:, 0] ** self.compute_exponent
        reading = self.memory * clipped[:, 1] ** self.memory_exponent
        return np.minimum(active_idle_share + computing + reading, 1.0)


PowerModels = Mapping[str, Mapping[str, PowerModel]]
"""Kernel -> system -> fitted power model."""


@dataclass(frozen=True)
class OperatorWatts:
    """Power of operators, one entry per row.

    Attributes:
        watts: mean over the operator's time; NaN without a known limit.
        measured: whether the kernel's power was measured on this system.
        compute_bound: whether compute limits it, not memory.
    """

    watts: np.ndarray
    measured: np.ndarray
    compute_bound: np.ndarray


class OperatorPower:
    """Predicts the power of operators on a system.

    ``models`` defaults to the shipped ones.
    """

    def __init__(self, device: Device, system: str = "", models: PowerModels | None = None) -> None:
        self.device, self.system = device, system
        self._models = shipped_models() if models is None else models
        similar = self._similar_systems(METERED_SYSTEMS)
        self.active_idle_share = float(np.mean([METERED_SYSTEMS[name][1] for name in similar]))
        """Share of the limit that the GPU draws while it waits for its next operator."""
        self.limit_w = device.specs.get("power_limit_w", float("nan"))
        """Power limit of the board in watts; NaN if unknown."""
        self.active_idle_w = self.limit_w * self.active_idle_share
        """Power of an awake idle GPU, in watts."""

    def watts(self, operators: pd.DataFrame, ms: np.ndarray) -> OperatorWatts:
        """Return the power of operators (run-table rows) that take ``ms`` milliseconds."""
        share, measured = np.empty(len(operators)), np.empty(len(operators), dtype=bool)
        compute_bound = np.empty(len(operators), dtype=bool)
        for kernel, index in operators.groupby("kernel", sort=False).indices.items():
            rows = operators.iloc[index].dropna(axis=1, how="all")
            rows = with_specs_of(rows, self.device)
            utilization = row_limits_ms(family_of(str(kernel)), rows) / ms[index, None]
            similar = SIMILAR_KERNELS.get(str(kernel), str(kernel))
            models = self._models[similar if similar in self._models else "gemm"]
            each = [
                models[name].share(utilization, self.active_idle_share)
                for name in self._similar_systems(models)
            ]
            share[index] = np.mean(each, axis=0)
            measured[index] = self.system in self._models.get(str(kernel), ())
            compute_bound[index] = utilization[:, 0] > utilization[:, 1]
        return OperatorWatts(share * self.limit_w, measured, compute_bound)

    def _similar_systems(self, systems: Iterable[str]) -> list[str]:
        """Return the measured systems to use: this one, its generation, else all."""
        names = list(systems)
        mine = _generation(self.device.architecture)
        same_generation = [n for n in names if _generation(METERED_SYSTEMS[n][0]) == mine]
        return [n for n in names if n == self.system] or same_generation or names


@cache
def shipped_models() -> dict[str, dict[str, PowerModel]]:
    """Return the shipped power models."""
    text = files("foretune.plan.cost").joinpath("power.csv").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found: dict[str, dict[str, PowerModel]] = {}
    for row in csv.DictReader(lines):
        form = PowerModel(*(float(row[field.name]) for field in fields(PowerModel)))
        found.setdefault(row["kernel"], {})[row["system"]] = form
    return found


def _generation(architecture: str) -> str:
    """Return the generation of an architecture: ``sm_10`` for ``sm_100`` and ``sm_103``."""
    return architecture[:-1]
