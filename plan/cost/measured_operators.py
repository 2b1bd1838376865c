"""What was measured of one kernel with one engine on one system, and who predicts the rest."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import Groups
from foretune.features.roofline import row_limits_ms
from foretune.models import Predictor
from foretune.models.experts.calibrated_roofline import CalibratedRoofline
from foretune.plan.cost.kept_predictors import Lesson
from foretune.plan.cost.kinds import FORMAT_COLUMNS, KINDS, family_of
from foretune.plan.cost.screening import COPIED, FALLING, TOO_FAST, copied, falling

if TYPE_CHECKING:
    from scipy.spatial import KDTree

LEAST_ROWS = 8
"""Of a format, to speak of operators in it."""
IMPOSSIBLE = 0.3
"""Share of the roofline below which a recorded time is an error of its table."""
LAUNCH_MS = 0.002
"""What an operator takes that does nothing, replayed from a graph."""
SHORTEST_MS = LAUNCH_MS / 4
"""What tables hold that is shorter was not measured."""
EXACT = 1e-6
"""Octaves within which a measurement is of the operator itself."""
MANY = (1, 2, 4, 8, 16, 32, 64)
"""Parts that an operator beyond what was measured may be read as."""
NEAR_ENOUGH = 0.75
"""Octaves to the nearest measurement up to which it is not: inside a table it is never more."""
REPEATED_WIDTH = 0.03
"""Half a 90 % interval in logarithms, at a measurement: what repeating it would change."""


@dataclass(frozen=True)
class Reading:
    """What is known of operators, one entry each.

    Attributes:
        log_ms: logarithm of the time.
        width: half the 90 % interval of ``log_ms``.
        watts: mean power; NaN where that of such operators was not measured.
        distance: to the nearest measurement, in octaves.
    """

    log_ms: np.ndarray
    width: np.ndarray
    watts: np.ndarray
    distance: np.ndarray


class MeasuredOperators:
    """The measurements of one kernel with one engine on one system.

    Several implementations may have been measured of an operator: an engine runs the fastest, and
    only that is kept. Rows that cannot be true are left out (`foretune.plan.cost.screening`).

    Args:
        kernel: of all rows.
        rows: a run table.
        name: of the kernel, the system and the engine.
        together: whether one predictor learns all formats, which is for tables that are asked
            about most of them; else each has its own.

    Attributes:
        dropped: how many rows were left out of `runs`, by reason.
    """

    def __init__(self, kernel: str, rows: pd.DataFrame, name: str, together: bool = True) -> None:
        self.kernel, self.name, self._together = kernel, name, together
        self.family = family_of(kernel)
        self._parts: dict[str, pd.DataFrame] = {}
        self._trees: dict[str, KDTree] = {}
        self.dropped: dict[str, int] = {}
        kind = KINDS[kernel]
        self._of_row = kind.keys(rows)
        counts = self._of_row[rows["time_ms"] > SHORTEST_MS].value_counts()
        self._enough = [str(key) for key, count in counts.items() if count >= LEAST_ROWS]
        self._rows = rows

    @cached_property
    def keys(self) -> list[str]:
        """Formats of which enough was measured, that of most rows first."""
        left = set(self.runs.loc[self.runs["time_ms"].notna(), "key"]) if self._enough else ()
        return [key for key in self._enough if key in left]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The fastest measurement of every operator, in the columns that operators have.

        With ``key``, its formats, and its power where that was measured.
        """
        kind = KINDS[self.kernel]
        rows = kind.complete(self._rows)
        del self._rows  # tables are large
        rows = rows.assign(key=self._of_row)
        columns = [*kind.axes, *kind.exact]
        # Work may depend on sizes that all rows share.
        sizes = [c for c in columns_of(rows, "problem") if c not in columns]
        same = ["device", *columns_of(rows, "device")]
        same += [c for c in sizes if rows[c].nunique(dropna=False) == 1]
        shared = {column: rows[column].bfill().iloc[0] for column in same}
        rows = rows[rows["key"].isin(self._enough)].assign(**shared)
        timed = rows[rows["time_ms"] > SHORTEST_MS]
        possible = self._possible(timed)
        fastest = timed[possible].sort_values("time_ms", kind="stable").drop_duplicates(columns)
        found = fastest[self._sound(fastest)][[*columns, "key", "time_ms"]].sort_index()
        self._drop(TOO_FAST, int((~possible).sum()))
        if "power_w" in rows:
            limit = shared.get("device.power_limit_w", np.inf)
            sound = (rows["power_w"] > 0) & (rows["power_w"] <= limit)
            metered = rows.loc[sound, [*columns, "key", "power_w"]].drop_duplicates(columns)
            found = found.merge(metered, "outer", [*columns, "key"])
        return found.assign(kernel=self.kernel, status="ok", **shared).reset_index(drop=True)

    def _sound(self, rows: pd.DataFrame) -> np.ndarray:
        """Return which rows no others of their source contradict, and are no copies."""
        kind = KINDS[self.kernel]
        told = [c for c in kind.exact if c in FORMAT_COLUMNS]
        good = np.full(len(rows), True)
        if told:
            columns = [c for c in (*kind.axes, *kind.exact) if c not in told]
            formats = rows[told].astype(str)
            joined = formats[told[0]].str.cat([formats[c] for c in told[1:]], "/")
            good = ~joined.isin(copied(rows, joined, columns)).to_numpy()
            self._drop(COPIED, int((~good).sum()))
        if kind.load:
            others = [c for c in (*kind.axes, *kind.exact, "source") if c in rows]
            others.remove(kind.load)
            wrong = good.copy()
            wrong[good] = falling(rows[good], kind.load, others)
            good &= ~wrong
            self._drop(FALLING, int(wrong.sum()))
        return good

    def _drop(self, reason: str, count: int) -> None:
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def _possible(self, rows: pd.DataFrame) -> np.ndarray:
        """Return which rows took as long as they must; all of a format with few such rows."""
        least_ms = IMPOSSIBLE * row_limits_ms(self.family, rows).max(axis=1)
        good = ~(rows["time_ms"].to_numpy(dtype=float) < least_ms)
        enough = pd.Series(good).groupby(rows["key"].to_numpy()).transform("sum") >= LEAST_ROWS
        possible: np.ndarray = good | ~enough.to_numpy()
        return possible

    def topic(self, key: str) -> str:
        """Return the name of the predictor of operators in formats ``key``."""
        return self.name if self._together else f"{self.name}-{key}"

    def lesson(self, topic: str) -> Lesson:
        """Return what the predictor of that name learns from."""
        keys = [key for key in self.keys if self.topic(key) == topic]
        rows = self.runs[self.runs["key"].isin(keys)].drop(columns="key")
        return Lesson(topic, rows.reset_index(drop=True), self.family)

    def read(
        self, key: str, rows: pd.DataFrame, limits: np.ndarray, predictor: Predictor
    ) -> Reading:
        """Return the times of operators as if they were in formats ``key``.

        Args:
            key: formats that were measured.
            rows: operators, `OperatorKind.complete`.
            limits: log compute and memory time of each where and how it is to run.
            predictor: that of their `topic`.
        """
        known, kind = self._of(key), KINDS[self.kernel]
        here = known.iloc[0]
        rows, parts = self._in_parts(key, rows)
        limits = limits - np.log(parts)[:, None]
        same = [c for c in known if c.startswith(("device", "kernel")) or c in kind.exact]
        asked = rows.assign(**{column: here[column] for column in same})
        said = predictor.predict(kind.in_tiles(asked))
        log_ms = np.log(said["time_ms"].to_numpy())
        width = np.log(said["time_ms_high"].to_numpy()) - log_ms
        distance, nearest = self._tree(key).query(kind.places(asked))
        exact = distance < EXACT
        log_ms = np.where(exact, np.log(known["time_ms"].to_numpy())[nearest], log_ms)
        width = np.where(exact, REPEATED_WIDTH, width)
        watts = said.get("power_w", pd.Series(np.nan, said.index)).to_numpy()
        log_ms = log_ms + np.log(parts) + self._elsewhere(key, asked, limits)
        return Reading(log_ms, width, watts, distance)

    def _in_parts(self, key: str, rows: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
        """Return operators larger than all measured ones as parts of them, and how many parts.

        Beyond what was measured, attention of twice as many requests takes twice as long.
        """
        kind, parts = KINDS[self.kernel], np.ones(len(rows))
        if not kind.split:
            return rows, parts
        size = rows[kind.split].to_numpy(dtype=float)
        tree, least = self._tree(key), np.full(len(rows), np.inf)
        for several in MANY:
            some = rows.assign(**{kind.split: np.maximum(size / several, 1.0)})
            gap = np.maximum(tree.query(kind.places(some))[0], NEAR_ENOUGH)
            nearer = (gap < least - EXACT) & (size >= several)
            parts, least = np.where(nearer, several, parts), np.minimum(gap, least)
        return rows.assign(**{kind.split: np.maximum(size / parts, 1.0)}), parts

    def _elsewhere(self, key: str, asked: pd.DataFrame, limits: np.ndarray) -> np.ndarray | float:
        """Return the log of how much longer operators take with other ``limits``, as efficient."""
        there = np.log(row_limits_ms(self.family, asked))
        if np.allclose(there, limits, equal_nan=True) or not np.isfinite(limits).all():
            return 0.0
        known, one = self._of(key), _one_group
        measured = np.log(row_limits_ms(self.family, known))
        log_ms = np.log(known["time_ms"].to_numpy())
        unit = CalibratedRoofline().fit(measured, log_ms, one(len(known)))
        return unit.log_value(limits, one(len(limits))) - unit.log_value(there, one(len(there)))

    def _of(self, key: str) -> pd.DataFrame:
        """Return the times that were measured in formats ``key``."""
        if key not in self._parts:
            here = (self.runs["key"] == key) & self.runs["time_ms"].notna()
            self._parts[key] = self.runs[here].reset_index(drop=True)
        return self._parts[key]

    def _tree(self, key: str) -> "KDTree":
        from scipy.spatial import KDTree

        if key not in self._trees:
            self._trees[key] = KDTree(KINDS[self.kernel].places(self._of(key)))
        return self._trees[key]


def _one_group(rows: int) -> Groups:
    return Groups(codes=np.zeros(rows, dtype=np.int64), names=["all"])
