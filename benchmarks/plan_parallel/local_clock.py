"""The planner's clock over operators that were measured on this machine's ranks."""

from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.device import Device
from foretune.features.arrays import Rows
from foretune.plan.cost.kinds import family_of
from foretune.plan.cost.tables import OperatorTables
from foretune.plan.cost.times import OperatorTimer, OperatorTimes
from plan_parallel.arrangement import RANK_MODES, RankMode
from plan_parallel.grid import EXCHANGES, FORMAT, LOCAL_DEVICE

MESSAGE_SCALE = 2.0
"""How much longer messages in 32 bits are than the planner's, which have 16."""


def rank_device(runs: pd.DataFrame) -> Device:
    """Return a rank as a device: its rates are the best that any measured operator reached."""
    products = runs[runs["kernel"] == "gemm"].dropna(axis=1, how="all")
    family = family_of("gemm")
    assert family is not None
    known = Rows.from_table(products)
    cost = family.cost(known.group("problem"), known.group("config"))
    seconds = products["time_ms"].to_numpy() * 1e-3
    specs = {
        "fp32_gflops": float(np.max(cost.flops / seconds) / 1e9),
        "memory_gbps": float(np.max(cost.bytes_moved / seconds) / 1e9),
    }
    return Device(LOCAL_DEVICE, "cpu", "", specs, "measured: the best of its operators")


def rank_timers(runs: pd.DataFrame) -> dict[RankMode, OperatorTimer]:
    """Return the planner's clocks over a measured run table: of one rank, and of all at once."""
    device = rank_device(runs)
    tables = LocalTables(runs)
    return {mode: RankTimer(device, tables, LOCAL_DEVICE, mode) for mode in RANK_MODES}


class LocalTables(OperatorTables):
    """A run table of this machine in the place of files.

    Args:
        runs: with ``config.backend`` one of `BUSY`.
    """

    def __init__(self, runs: pd.DataFrame) -> None:
        super().__init__(Path())
        self._runs = runs

    @cached_property
    def systems(self) -> list[str]:
        """The one system."""
        return [LOCAL_DEVICE]

    def backends(self, system: str) -> list[str]:
        """Return both ways that ranks were measured in."""
        return list(RANK_MODES)

    def rows(self, kernel: str, system: str, backend: str) -> pd.DataFrame | None:
        """Return what was measured of ``kernel``; an exchange always takes all ranks."""
        mine = self._runs["kernel"] == kernel
        if kernel not in EXCHANGES:
            mine &= self._runs["config.backend"] == backend
        specs = {f"device.{name}": value for name, value in rank_device(self._runs).specs.items()}
        found = self._runs[mine].dropna(axis=1, how="all").reset_index(drop=True)
        return found.assign(**specs) if len(found) else None


class RankTimer(OperatorTimer):
    """Answers in the ranks' format what planners ask in theirs."""

    def times(self, operators: pd.DataFrame, fastest_format: bool = False) -> OperatorTimes:
        """Return how long operators take; see `OperatorTimer.times`."""
        here = operators.assign(**{"config.format": FORMAT, "config.kv_format": "bf16"})
        if "problem.message_bytes" in here:
            here["problem.message_bytes"] *= MESSAGE_SCALE
        return super().times(here, fastest_format)
