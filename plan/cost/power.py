"""Power of operators.

Power is a share of the board's limit: the active idle share plus terms for the utilization of
compute and memory, capped at the limit. Boards differ more in their limits than in these shares.
GPUs without power measurements take the shares of their generation, else the mean of all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from foretune.datasets.runs import with_specs_of
from foretune.device import Device
from foretune.features.roofline import row_limits_ms
from foretune.plan.cost.kinds import family_of
from foretune.plan.describe import shipped_rows

METERED_SYSTEMS = {"h200_sxm": ("sm_90", 0.187), "b200_sxm": ("sm_100", 0.254)}
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

    ``compute`` and ``memory`` are added at peak rates; exponents shape utilizations.
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


class OperatorWatts(NamedTuple):
    """Power of operators, one entry per row."""

    watts: np.ndarray  # mean over the operator's time; NaN without a known limit
    measured: np.ndarray  # whether the kernel's power was measured on this system
    compute_bound: np.ndarray  # whether compute limits it, not memory


class OperatorPower:
    """Predicts the power of operators on a system; ``models`` are by default the shipped ones."""

    def __init__(self, device: Device, system: str = "", models: PowerModels | None = None) -> None:
        self.device = device
        self.system = system
        self._models = shipped_models() if models is None else models
        idle_shares = [METERED_SYSTEMS[name][1] for name in self._similar_systems(METERED_SYSTEMS)]
        self.active_idle_share = float(np.mean(idle_shares))
        """Share of the limit that the GPU draws while it waits for its next operator."""
        self.limit_w = device.specs.get("power_limit_w", float("nan"))
        """Power limit of the board in watts; NaN if unknown."""
        self.active_idle_w = self.limit_w * self.active_idle_share
        """Power of an awake idle GPU, in watts."""

    def watts(self, operators: pd.DataFrame, ms: np.ndarray) -> OperatorWatts:
        """Return the power of operators (run-table rows) that take ``ms`` milliseconds."""
        share = np.empty(len(operators))
        measured = np.empty(len(operators), dtype=bool)
        compute_bound = np.empty(len(operators), dtype=bool)
        for name, index in operators.groupby("kernel", sort=False).indices.items():
            kernel = str(name)
            rows = operators.iloc[index].dropna(axis=1, how="all")
            limits_ms = row_limits_ms(family_of(kernel), with_specs_of(rows, self.device))
            utilization = limits_ms / ms[index, None]

            # The mean of the systems whose power is most like this one's.
            models = self._models_of(kernel)
            shares = [
                models[system].share(utilization, self.active_idle_share)
                for system in self._similar_systems(models)
            ]
            share[index] = np.mean(shares, axis=0)
            measured[index] = self.system in self._models.get(kernel, ())
            compute_bound[index] = utilization[:, 0] > utilization[:, 1]
        return OperatorWatts(share * self.limit_w, measured, compute_bound)

    def _models_of(self, kernel: str) -> Mapping[str, PowerModel]:
        """Return the power models to use for a kernel, by system."""
        similar = SIMILAR_KERNELS.get(kernel, kernel)
        if similar in self._models:
            return self._models[similar]
        return self._models["gemm"]

    def _similar_systems(self, systems: Iterable[str]) -> list[str]:
        """Return the measured systems to use: this one, its generation, else all."""
        names = list(systems)
        if self.system in names:
            return [self.system]
        generation = self.device.architecture[:-1]  # sm_10 for sm_100 and sm_103
        same_generation = [name for name in names if METERED_SYSTEMS[name][0][:-1] == generation]
        return same_generation or names


@cache
def shipped_models() -> dict[str, dict[str, PowerModel]]:
    """Return the shipped power models."""
    models: dict[str, dict[str, PowerModel]] = {}
    for row in shipped_rows("power.csv", "foretune.plan.cost"):
        model = PowerModel(**{field.name: float(row[field.name]) for field in fields(PowerModel)})
        models.setdefault(row["kernel"], {})[row["system"]] = model
    return models
