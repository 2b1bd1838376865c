"""Tables that serving engines' operators were measured into, and which of their versions count."""

import re
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.importers import vidur
from foretune.datasets.importers.aiconfigurator import KERNELS, operation_of, read
from foretune.datasets.importers.request import Request
from foretune.datasets.importers.systems import device_of_system
from foretune.device import find_device_or_none
from foretune.plan.cost.attention_modules import DECODE, MODULES, PREFILL, to_module_rows
from foretune.plan.cost.kinds import KINDS, with_expert_kind
from foretune.plan.cost.recurrent_attention import RECURRENT, to_recurrent_rows

MIN_COMPLETE_SHARE = 0.4
"""Of the rows of the largest version: a newer one with fewer is not taken to be complete."""
COLLECTIVE_BACKENDS = ("nccl", "oneccl")
"""Libraries whose tables serve every engine."""
OPERATIONS = (
    *(op for op, kernel in KERNELS.items() if kernel in KINDS or op in COLLECTIVE_BACKENDS),
    "mla_bmm",
    *(family.name for family in MODULES),
    *(family.name for family in RECURRENT),
)
NETWORK_FILE = "vidur_network.parquet"
"""Messages from one GPU to the next, which no engine's tables have."""
NODE_GPUS = 8
"""In the servers whose messages count: all joined by the same links, not in pairs."""


class EngineTables:
    """The operators of engines below a folder, in either layout that occurs.

    Either one file per system, backend and version (``SYSTEM/…/BACKEND/VERSION/OP_perf.parquet``)
    or one file per operation with columns that say so (``OP.parquet``).

    Args:
        folder: where the files are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def systems(self) -> list[str]:
        """The systems that were measured, by their short names."""
        if self._nested:
            found = {path.relative_to(self.folder).parts[0] for path in self._nested}
            return sorted(found)
        named = [pd.read_parquet(path, columns=["system"])["system"] for path in self._flat]
        return sorted(set(pd.concat(named))) if named else []

    def backends(self, system: str) -> list[str]:
        """Return the engines measured on ``system``."""
        if self._nested:
            found = {p.parts[-3] for p in self._nested if system in p.parts}
        else:
            found = {b for path in self._flat for b in self._backends_in(path, system)}
        return sorted(found - set(COLLECTIVE_BACKENDS))

    def rows(self, kernel: str, system: str, backend: str) -> pd.DataFrame | None:
        """Return the run table of ``kernel`` measured on ``system`` with ``backend``, or None.

        Of several versions the newest that is complete counts; older ones only for number formats
        that it lacks, and for power where no newer one has it: those rows have no time. Collectives
        that the engine has none of its own for are the library's.
        """
        if kernel == "send_recv":
            return self._send_recv_rows(system)
        for op in OPERATIONS:
            if KERNELS.get(op, op) not in (kernel, ""):
                continue
            backends = COLLECTIVE_BACKENDS if op in COLLECTIVE_BACKENDS else (backend,)
            versions = self._versions(op, kernel, system, backends)
            if versions:
                rows = _with_device(_merge_versions(versions).assign(kernel=kernel), system)
                if op in OPERATIONS[-len(RECURRENT) :]:
                    return to_recurrent_rows(rows)
                if op in (PREFILL, DECODE):
                    return to_module_rows(rows)
                return with_expert_kind(rows) if kernel == "moe" else rows
        return None

    def _send_recv_rows(self, system: str) -> pd.DataFrame | None:
        """Return the messages between neighbours of a node."""
        path = self.folder / NETWORK_FILE
        if not path.is_file():
            return None
        rows = vidur.read(path, Request(kernel="send_recv"))
        here = rows["device"].astype(str) == device_of_system(system)
        here &= rows["problem.devices_per_node"] == rows["problem.devices"]
        here &= rows["problem.max_devices_per_node"] == NODE_GPUS
        return _with_device(rows[here].reset_index(drop=True), system) if here.any() else None

    @cached_property
    def _nested(self) -> list[Path]:
        files = self.folder.rglob("*_perf.parquet")
        return sorted(p for p in files if operation_of(p) in OPERATIONS)

    @cached_property
    def _flat(self) -> list[Path]:
        return [p for op in OPERATIONS if (p := self.folder / f"{op}.parquet").is_file()]

    def _backends_in(self, path: Path, system: str) -> set[str]:
        table = pd.read_parquet(path, columns=["system", "backend"])
        return set(table.loc[table["system"] == system, "backend"])

    def _versions(
        self, op: str, kernel: str, system: str, backends: tuple[str, ...]
    ) -> list[pd.DataFrame]:
        """Return the tables of every version, oldest first."""
        if self._nested:
            found = [
                p for p in self._nested
                if operation_of(p) == op and system in p.parts and p.parts[-3] in backends
            ]  # fmt: skip
            found.sort(key=lambda p: _version_key(p.parts[-2]))
            tables = [read(path, Request(kernel=kernel)) for path in found]
            return [rows for rows in tables if len(rows)]
        path = self.folder / f"{op}.parquet"
        if not path.is_file():
            return []
        table = self._flat_tables(op)
        mine = (table["device"] == device_of_system(system)) & table["config.backend"].isin(
            backends
        )
        mine &= table["kernel"] == kernel
        groups = table[mine].groupby("environment", observed=True)
        return [rows for _, rows in sorted(groups, key=lambda pair: _version_key(str(pair[0])))]

    def _flat_tables(self, op: str) -> pd.DataFrame:
        if op not in self._tables_by_operation:
            self._tables_by_operation[op] = read(self.folder / f"{op}.parquet", Request())
        return self._tables_by_operation[op]

    @cached_property
    def _tables_by_operation(self) -> dict[str, pd.DataFrame]:
        return {}


def _merge_versions(versions: list[pd.DataFrame]) -> pd.DataFrame:
    largest = max(len(rows) for rows in versions)
    complete = [rows for rows in versions if len(rows) >= MIN_COMPLETE_SHARE * largest]
    kept: list[pd.DataFrame] = []
    seen: set[str] = set()
    for rows in [complete[-1], *reversed([v for v in versions if v is not complete[-1]])]:
        new = rows[~rows["config.format"].isin(seen)] if "config.format" in rows else rows
        seen |= set(new["config.format"]) if "config.format" in rows else set()
        kept.append(new)
    metered = [v for v in versions if "power_w" in v and v["power_w"].notna().any()]
    if metered and metered[-1] is not complete[-1]:
        kept.append(metered[-1].assign(time_ms=np.nan))
    return pd.concat([rows for rows in kept if len(rows)], ignore_index=True)


def _with_device(rows: pd.DataFrame, system: str) -> pd.DataFrame:
    device = find_device_or_none(device_of_system(system))
    specs = device.specs if device else {}
    return rows.assign(**{f"device.{name}": value for name, value in specs.items()})


def _version_key(version: str) -> tuple[tuple[int, str], ...]:
    """Return what versions sort by: 1.3.0rc9 before 1.3.0rc10."""
    parts = re.findall(r"\d+|[a-z]+", version.lower())
    return tuple((int(p), "") if p.isdigit() else (-1, p) for p in parts)
