"""How long operators take on a system: measured, interpolated, predicted or by their roofline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from foretune.device import Device
from foretune.features.roofline import row_limits_ms
from foretune.plan.cost.interpolation import EXACT, Interpolation
from foretune.plan.cost.kinds import KINDS, family_of
from foretune.plan.cost.tables import OperatorTables

Source = Literal["measured", "interpolated", "predicted", "roofline"]
SOURCES: tuple[Source, ...] = ("measured", "interpolated", "predicted", "roofline")
FAR = 1.0
"""Octaves to the nearest measurement beyond which a time is predicted, not interpolated."""
LEAST_ROWS = 8
IMPOSSIBLE = 0.3
"""Share of the roofline below which a recorded time is an error of its table."""
LAUNCH_MS = 0.002
"""What an operator takes that does nothing, replayed from a graph."""
EFFICIENCY = 0.7
"""Of peak rates, where nothing was measured."""
ROOFLINE_WIDTH = 0.7
BORROWED_WIDTH = 0.25
RELATIVES = {
    "fp8": ("fp8_static", "fp8_block", "int8"),
    "fp8_block": ("fp8", "fp8_static", "int8"),
    "fp8_static": ("fp8", "fp8_block", "int8"),
    "int8": ("fp8", "fp8_static"),
    "nvfp4": ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4", "fp8", "fp8_block"),
    "w4a8_mxfp4_mxfp8": ("nvfp4", "w4a16_mxfp4", "fp8", "fp8_block"),
    "w4a16_mxfp4": ("int4_wo", "w4a8_mxfp4_mxfp8", "w4afp8", "nvfp4", "bf16"),
    "int4_wo": ("w4a16_mxfp4", "w4afp8", "int8_wo", "bf16"),
    "int8_wo": ("int4_wo", "w4a16_mxfp4", "bf16"),
    "fused_recurrent_gated_delta_rule": ("fused_recurrent_gated_delta_rule_packed_decode",),
    "w4afp8": ("w4a8_mxfp4_mxfp8", "int4_wo", "w4a16_mxfp4", "fp8"),
}
"""Format -> those whose efficiency it borrows where its own was not measured, nearest first."""

SAME_WORK = ("fp8", "fp8_block")
"""Formats of experts that cost the same work. The tables hold kernels nobody tuned among them, up
to three times slower than the other's, which no engine would choose."""


@dataclass(frozen=True)
class OperatorTimes:
    """Times of operators, one entry per row of the table that was asked about.

    Attributes:
        ms, low, high: milliseconds, and their 90 % interval.
        source: where each is from.
    """

    ms: np.ndarray
    low: np.ndarray
    high: np.ndarray
    source: np.ndarray


class OperatorClock:
    """Answers how long operators take with one engine on one system; never refuses.

    Tables are read, and interpolations fitted, when an operator first needs them.

    Args:
        device: of the system; its rates are the roofline.
        tables: measured operators, or None.
        system: its short name in ``tables``.
        backend: the engine; others on the same system stand in for what it lacks.
        stand_ins: systems whose efficiency is borrowed where this one was not measured.
    """

    def __init__(
        self,
        device: Device,
        tables: OperatorTables | None,
        system: str,
        backend: str = "",
        stand_ins: Sequence[str] = (),
    ) -> None:
        self.device, self.system, self.backend = device, system, backend
        self._tables = tables
        self._places = [
            (place, engine)
            for place in ((system, *stand_ins) if tables else ())
            for engine in sorted(
                tables.backends(place) if tables else (), key=lambda e: e != backend
            )
        ]
        self._shelves: dict[tuple[str, str, str], _Shelf] = {}

    def times(self, operators: pd.DataFrame) -> OperatorTimes:
        """Return how long operators take, a table in run-table columns.

        Args:
            operators: ``kernel``, ``problem.…``, ``config.format``, ``config.kv_format``,
                ``config.tp``, ``config.ep``; columns that do not concern a kernel are ignored.
        """
        n = len(operators)
        log_ms, width = np.empty(n), np.empty(n)
        source = np.empty(n, dtype=np.int8)
        for kernel, index in operators.groupby("kernel", sort=False).indices.items():
            rows = operators.iloc[index].dropna(axis=1, how="all")
            answer = self._kernel(str(kernel), rows)
            log_ms[index], width[index], source[index] = answer
        ms, factor = np.exp(log_ms), np.exp(width)
        return OperatorTimes(ms, ms / factor, ms * factor, np.array(SOURCES)[source])

    def _kernel(self, kernel: str, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        specs = {f"device.{name}": value for name, value in self.device.specs.items()}
        limits = np.log(row_limits_ms(family_of(kernel), rows.assign(**specs)))
        log_ms, width = _roofline(limits)
        source = np.full(len(rows), 3, dtype=np.int8)
        kind = KINDS.get(kernel)
        if kind is None:
            return log_ms, width, source
        keys, places = kind.keys(rows), kind.places(rows)
        for key in keys.unique():
            here = np.flatnonzero((keys == key).to_numpy())
            answer = self._read(kernel, str(key), places[here], limits[here])
            if answer is None:
                continue
            for other in _choices(kernel, str(key)):
                choice = self._read(kernel, other, places[here], limits[here])
                if choice is not None and choice.own:
                    answer = answer.fastest(choice)
            log_ms[here], width[here], source[here] = answer.log_ms, answer.width, answer.source
        return log_ms, width, source

    def _read(
        self, kernel: str, key: str, places: np.ndarray, limits: np.ndarray
    ) -> "_Answer | None":
        """Return the times of operators in formats ``key``; None without any measurement."""
        grid, own = self._nearest_grid(kernel, key)
        if grid is None:
            return None
        reading = grid.read(places, limits)
        near = np.where(reading.distance < FAR, 1, 2)
        source = np.where(own, np.where(reading.distance < EXACT, 0, near), 2)
        return _Answer(reading.log_ms, reading.width + (0 if own else BORROWED_WIDTH), source, own)

    def _nearest_grid(self, kernel: str, key: str) -> tuple[Interpolation | None, bool]:
        """Return the measurements of formats ``key``, or those most like it; whether its own.

        Another engine's measurements of the same format tell more than this one's of another.
        """
        wanted = key.split("/")
        for nearness in (0, 1):
            for place in self._places:
                shelf = self._shelf(kernel, *place)
                if not shelf.keys:
                    continue
                best = min(shelf.keys, key=lambda other: _difference(wanted, other.split("/")))
                if nearness or best == key:
                    own = place[0] == self.system and place[1] == (self.backend or place[1])
                    return shelf.grid(best), own and best == key
        return None, False

    def _shelf(self, kernel: str, system: str, backend: str) -> "_Shelf":
        place = (kernel, system, backend)
        if place not in self._shelves:
            rows = self._tables.rows(*place) if self._tables else None
            self._shelves[place] = _Shelf(kernel, rows)
        return self._shelves[place]


@dataclass(frozen=True)
class _Answer:
    """Times of some operators; ``own`` if measured in their format with this engine here."""

    log_ms: np.ndarray
    width: np.ndarray
    source: np.ndarray
    own: bool

    def fastest(self, other: "_Answer") -> "_Answer":
        """Return the faster of two for every operator."""
        faster = other.log_ms < self.log_ms
        return _Answer(
            np.where(faster, other.log_ms, self.log_ms),
            np.where(faster, other.width, self.width),
            np.where(faster, other.source, self.source),
            self.own,
        )


class _Shelf:
    """The measurements of one kernel with one engine on one system, by their formats."""

    def __init__(self, kernel: str, rows: pd.DataFrame | None) -> None:
        self._kernel, self._rows = kernel, rows
        self._of_row = KINDS[kernel].keys(rows) if rows is not None else None
        self._grids: dict[str, Interpolation] = {}
        counts = {} if self._of_row is None else self._of_row.value_counts().to_dict()
        self.keys = [str(key) for key, count in counts.items() if count >= LEAST_ROWS]

    def grid(self, key: str) -> Interpolation:
        """Return the interpolation of the measurements of formats ``key``."""
        if key not in self._grids:
            assert self._rows is not None
            assert self._of_row is not None
            some = self._rows[(self._of_row == key).to_numpy()]
            limits = np.log(row_limits_ms(family_of(self._kernel), some))
            log_ms = np.log(np.maximum(some["time_ms"].to_numpy(dtype=float), 1e-9))
            good = log_ms > np.log(LAUNCH_MS / 4)
            good &= log_ms > limits.max(axis=1) + np.log(IMPOSSIBLE)
            good = good if good.sum() >= LEAST_ROWS else np.ones(len(some), dtype=bool)
            places = KINDS[self._kernel].places(some)[good]
            self._grids[key] = Interpolation.of_distinct(places, limits[good], log_ms[good])
        return self._grids[key]


def _choices(kernel: str, key: str) -> list[str]:
    """Return formats of which an engine runs the faster one in place of ``key``."""
    kind, _, rest = key.partition("/")
    if kernel != "moe" or kind not in SAME_WORK:
        return []
    return [f"{other}/{rest}" for other in SAME_WORK if other != kind]


def _roofline(limits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bound = np.exp(np.nan_to_num(limits, nan=-30.0)).max(axis=1)
    log_ms = np.log(LAUNCH_MS + bound / EFFICIENCY)
    return log_ms, np.full(len(limits), ROOFLINE_WIDTH)


def _difference(wanted: Sequence[str], other: Sequence[str]) -> tuple[int, ...]:
    """Return how unlike two keys are, the first part counting most."""
    return tuple(_unlike(a, b) for a, b in zip(wanted, other, strict=True))


def _unlike(wanted: str, other: str) -> int:
    if wanted == other:
        return 0
    relatives = RELATIVES.get(wanted, ())
    return 1 + (relatives.index(other) if other in relatives else len(relatives))
