"""The result of an import: rows that can be believed, and a count of those that cannot."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from foretune.datasets.importers.columns import drop_unused
from foretune.datasets.schema import validate
from foretune.measurement import POWER_MARGIN, Status


@dataclass(frozen=True)
class ImportResult:
    """What an import gave.

    Attributes:
        runs: a valid run table.
        rejected: reason -> how many rows of the files are not in ``runs`` because of it.
        skipped: files of a folder that are not of this format -> what they lack.
    """

    runs: pd.DataFrame
    rejected: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def kernels(self) -> dict[str, int]:
        """How many rows there are of every kernel, most first."""
        return {str(k): int(n) for k, n in self.runs["kernel"].value_counts().items() if n}


def drop_invalid_rows(rows: pd.DataFrame, skipped: Mapping[str, str] | None = None) -> ImportResult:
    """Return the rows that a run table may hold and count the others by reason.

    A row with several faults is counted once, under the first.

    Raises:
        RunTableError: the rows break the schema in another way, which is an importer's mistake.
    """
    kept = np.ones(len(rows), dtype=bool)
    rejected = {}
    for reason, fault in _faults(rows):
        if count := int((fault & kept).sum()):
            rejected[reason] = count
            kept &= ~fault
    runs = drop_unused(rows[kept].reset_index(drop=True) if rejected else rows)
    return ImportResult(validate(runs, "imported rows"), rejected, dict(skipped or {}))


def _faults(rows: pd.DataFrame) -> Iterator[tuple[str, np.ndarray]]:
    for column in ("kernel", "device"):
        yield f"no {column}", (rows[column].isna() | (rows[column] == "")).to_numpy(dtype=bool)
    known = [s.value for s in Status]
    yield "unknown status", ~rows["status"].isin(known).to_numpy()
    ok = (rows["status"] == Status.OK.value).to_numpy()
    time_ms, power_w = _floats(rows, "time_ms"), _floats(rows, "power_w")
    metered = ~np.isnan(power_w)
    yield "no time", ok & np.isnan(time_ms) & ~metered
    yield "time is zero", ok & (time_ms == 0)
    yield "time is negative", ok & (time_ms < 0)
    yield "time is infinite", ok & np.isinf(time_ms)
    yield "power is not positive", metered & ~((power_w > 0) & np.isfinite(power_w))
    limit = _floats(rows, "device.power_limit_w") * POWER_MARGIN
    yield "power is far above the device's limit", metered & (power_w > limit)
    energy_mj = _floats(rows, "energy_mj")
    impossible = ~((energy_mj > 0) & np.isfinite(energy_mj))
    yield "energy is not positive", ~np.isnan(energy_mj) & impossible


def _floats(rows: pd.DataFrame, column: str) -> np.ndarray:
    if column not in rows:
        return np.full(len(rows), np.nan)
    return rows[column].to_numpy(dtype=float)
