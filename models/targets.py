"""Targets: time and power, and the scale on which they are learned.

Runtime is learned as log(time / calibrated roofline). This ratio generalizes to other sizes far
better than milliseconds do. Power is learned as log(share of the board's limit / share explained by
the parts of the roofline), because boards differ in their limits far more than in such shares.
Energy is always power × time (`foretune.models.objectives`), never a third model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.errors import PredictorError
from foretune.features.arrays import Groups, Rows, groups_of
from foretune.features.featureset import FeatureSet
from foretune.features.roofline import row_parts_ms, text_columns
from foretune.models.calibrated_roofline import POWER, TIME, CalibratedRoofline, Law
from foretune.models.target_names import MIN_ROWS, TARGETS, Target

LAWS: dict[Target, Law] = {"time_ms": TIME, "power_w": POWER}
POWER_LIMIT = "power_limit_w"
"""The device's spec with the limit of its board."""
MIN_SHARE = 0.5
"""No board draws less than this share of the smallest observed power (idle)."""
MAX_SHARE = 1.05
"""No board draws more than this share of its limit: the limit and the error of the meter."""
MAX_UNKNOWN = 2.0
"""Maximum power, as a multiple of the largest observed, if no board's limit is known."""


@dataclass
class TargetScale:
    """What a target is divided by: its scale, times its unit relative to that scale.

    The scale is a millisecond, a watt or the limit of a board. The unit is the ``roofline``, whose
    parts are calibrated on that scale; without one it is 1.

    ``roofline`` is None if there is none; text ``columns`` of the configuration have separate
    calibrations. ``typical`` is the log of each part's time for rows with unknown rooflines; None
    if all were known in training. ``limit_w`` is the default board limit in W; None if the scale is
    one millisecond. ``shares`` are minimum and maximum share of the board's limit, and
    ``knows_limits`` is true if training had a board with a known limit.
    """

    roofline: CalibratedRoofline | None = None
    columns: Sequence[str] = ()
    typical: Sequence[float] | None = None
    limit_w: float | None = None
    shares: Sequence[float] | None = None
    knows_limits: bool = True

    @classmethod
    def fit(
        cls,
        target: Target,
        features: FeatureSet,
        runs: pd.DataFrame,
        log_target: np.ndarray,
        problems: np.ndarray | None = None,
    ) -> Self:
        """Return the scale of ``target``, its roofline calibrated on runs with known rooflines.

        ``problems`` are the problem numbers of the rows, if there are few problems.
        """
        scale = cls()

        # Power is a share of the board's limit, and stays within bounds.
        if target == "power_w":
            scale.limit_w = _median_limit_w(runs, log_target)
        log_scaled = log_target - scale.log_scale(runs)
        if target == "power_w":
            shares = np.exp(log_scaled)
            scale.knows_limits = bool(np.isfinite(_limits_w(Rows(runs), np.nan)).any())
            largest = MAX_SHARE if scale.knows_limits else MAX_UNKNOWN
            scale.shares = (
                MIN_SHARE * float(shares.min()),
                max(largest, float(shares.max())),
            )

        # The roofline is calibrated on the rows that have one; the others count as typical.
        if not features.roofline_known_:
            return scale
        log_parts = np.log(row_parts_ms(features.family, features.described(Rows(runs))))
        is_known = np.isfinite(log_parts).all(axis=-1)
        if not is_known.any():
            return scale
        if not is_known.all():
            scale.typical = np.median(log_parts[is_known], axis=0).tolist()
        scale.columns = text_columns(runs)
        groups = groups_of(runs, scale.columns)
        scale.roofline = CalibratedRoofline(LAWS[target])
        scale.roofline.fit(
            log_parts[is_known],
            log_scaled[is_known],
            groups[is_known],
            problems=None if problems is None else problems[is_known],
        )
        return scale

    def log_scale(self, runs: pd.DataFrame | Rows) -> np.ndarray:
        """Return the log of every row's scale (for power, its board's limit)."""
        if self.limit_w is None:
            return np.zeros(len(runs))
        return np.log(_limits_w(Rows.from_table(runs), self.limit_w))

    def log_range(self, runs: pd.DataFrame | Rows) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the log of every row's minimum and maximum; None if the target has no limits.

        Both are infinite for boards with unknown limits, unless training had only such boards.
        """
        if self.shares is None or self.limit_w is None:
            return None
        unknown = np.nan if self.knows_limits else self.limit_w
        limits = np.log(_limits_w(Rows.from_table(runs), unknown))
        low, high = (limits + np.log(share) for share in self.shares)
        return np.nan_to_num(low, nan=-np.inf), np.nan_to_num(high, nan=np.inf)

    def log_divisor(self, features: FeatureSet, runs: pd.DataFrame | Rows) -> np.ndarray:
        """Return the log of what every row's target is divided by: unit times scale (rows)."""
        return self.log_unit(features, runs) + self.log_scale(runs)

    def log_unit(self, features: FeatureSet, runs: pd.DataFrame | Rows) -> np.ndarray:
        """Return the log of every row's unit, relative to its scale.

        Raises PredictorError if all rooflines were known in training, and one is missing here.
        """
        if self.roofline is None:
            return np.zeros(len(runs))
        return self.roofline.log_value(*self._log_parts(features, runs))

    def log_terms(self, features: FeatureSet, runs: pd.DataFrame) -> np.ndarray:
        """Return the logs of the calibrated parts of the time in ms; needs a roofline."""
        assert self.roofline is not None
        return self.roofline.log_terms(*self._log_parts(features, runs))

    def _log_parts(
        self, features: FeatureSet, runs: pd.DataFrame | Rows
    ) -> tuple[np.ndarray, Groups]:
        """Return the logs of the parts' times, and the group of every row."""
        runs = features.described(Rows.from_table(runs))
        log_parts = np.log(row_parts_ms(features.family, runs))
        is_known = np.isfinite(log_parts).all(axis=-1)
        if self.typical is not None:
            log_parts = np.where(is_known[..., None], log_parts, self.typical)
        elif not is_known.all():
            row = int(np.flatnonzero(~is_known)[0])
            raise PredictorError(
                f"row {row} lacks a size, or its device lacks a name or rates (device.fp32_gflops, "
                "device.memory_gbps), which the predictor needs"
            )
        return log_parts, groups_of(runs, self.columns)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`."""
        names = ("columns", "typical", "limit_w", "shares", "knows_limits")
        return {name: getattr(self, name) for name in names} | {
            "roofline": self.roofline and self.roofline.to_json()
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], target: Target) -> Self:
        """Return the scale that `to_json` wrote."""
        roofline = data.pop("roofline")
        return cls(roofline and CalibratedRoofline.from_json(roofline, LAWS[target]), **data)


def _median_limit_w(runs: pd.DataFrame, log_w: np.ndarray) -> float:
    """Return the median board limit; if none is known, the maximum power."""
    limits = _limits_w(Rows(runs), np.nan)
    known = np.isfinite(limits)
    return float(np.median(limits[known]) if known.any() else np.exp(log_w.max()))


def _limits_w(rows: Rows, unknown: float) -> np.ndarray:
    limits: Any = rows.group("device").get(POWER_LIMIT, np.nan)
    return np.broadcast_to(np.where(np.greater(limits, 0.0), limits, unknown), len(rows))


def measured_rows(target: Target, runs: pd.DataFrame, renumber: bool = True) -> pd.DataFrame:
    """Return the successful rows with ``target``; none if there is no such column."""
    if target not in runs:
        return runs.iloc[:0]
    rows = runs[(runs["status"] == "ok") & runs[target].notna()]
    return rows.reset_index(drop=True) if renumber else rows


def usable_rows(target: Target, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the successful rows with ``target``, see `measured_rows`.

    Raises PredictorError if there are fewer than five.
    """
    if target not in runs:
        raise PredictorError(f"the runs have no column {target!r}: nothing to learn from")
    rows = measured_rows(target, runs)
    if len(rows) < MIN_ROWS:
        raise PredictorError(
            f"only {len(rows)} successful runs with {target}: at least "
            f"{MIN_ROWS} are needed, 100 are better"
        )
    return rows


def present_targets(runs: pd.DataFrame) -> list[Target]:
    """Return the targets with enough measured rows."""
    return [target for target in TARGETS if len(measured_rows(target, runs)) >= MIN_ROWS]


def attempted_rows(target: Target, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with ``target``, and the failed rows of their devices."""
    has_target = runs[target].notna() if target in runs else pd.Series(False, runs.index)
    failed = (runs["status"] != "ok") & runs["device"].isin(runs.loc[has_target, "device"].unique())
    return runs[has_target | failed]
