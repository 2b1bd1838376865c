"""Targets: the scale on which a quantity is learned, and the way back.

Runtime is learned as log(time / calibrated roofline): what is left is how far a run stays from what
its device does with such work, which carries over to other sizes far better than milliseconds do.
Power is learned as log(share of the board's limit / what the parts of the roofline explain of it):
boards differ in their limits far more than in such shares. Energy is always power × time, never a
third model.
"""

from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import numpy as np
import pandas as pd

from foretune.errors import PredictorError
from foretune.features import FeatureSet, row_parts_ms, text_columns
from foretune.features.arrays import Rows, groups_of
from foretune.models.power_share import POWER
from foretune.models.roofline import TIME, CalibratedRoofline, Law

Target = Literal["time_ms", "power_w"]
TARGETS: tuple[Target, ...] = get_args(Target)
LAWS: dict[Target, Law] = {"time_ms": TIME, "power_w": POWER}
POWER_LIMIT = "device.power_limit_w"
MIN_SHARE, MAX_SHARE = 0.5, 1.05
"""No board draws less than half of the least share of its limit that was seen, which is idling, or
more than its limit, but for what meters err."""
MIN_ROWS = 5
"""Successful runs that teach a target."""


class TargetScale:
    """What a target is measured against: a scale, and a law of the roofline's parts on that scale.

    Attributes:
        roofline: the calibrated law, or None for the plain scale.
        columns: text-valued configuration that it is calibrated apart for.
        typical: log of each part's time that stands for rows whose rooflines are not known; None
            where training knew all.
        limit_w: the limit of boards that do not say theirs; None where the scale is none, a
            millisecond.
        shares: the least and the most of its limit that a board can draw; None without a limit.
    """

    def __init__(
        self,
        roofline: CalibratedRoofline | None = None,
        columns: Sequence[str] = (),
        typical: Sequence[float] | None = None,
        limit_w: float | None = None,
        shares: Sequence[float] | None = None,
    ) -> None:
        self.roofline = roofline
        self.columns = list(columns)
        self.typical = typical
        self.limit_w = limit_w
        self.shares = shares

    @classmethod
    def fit(
        cls,
        target: Target,
        features: FeatureSet,
        runs: pd.DataFrame,
        log_target: np.ndarray,
        problems: np.ndarray | None = None,
    ) -> Self:
        """Return the unit of ``target``: calibrated on those ``runs`` whose rooflines are known.

        ``problems`` says which problem each row is of, where they are few.
        """
        scale = cls()
        if target == "power_w":
            scale.limit_w = _median_limit_w(runs, log_target)
        measured = log_target - scale.log_scale(runs)
        if target == "power_w":
            seen = np.exp(measured)
            scale.shares = MIN_SHARE * float(seen.min()), max(MAX_SHARE, float(seen.max()))
        if not features.roofline_known_:
            return scale
        parts = np.log(row_parts_ms(features.family, runs))
        known = np.isfinite(parts).all(axis=-1)
        if not known.any():
            return scale
        if not known.all():
            scale.typical = np.median(parts[known], axis=0).tolist()
        scale.columns = text_columns(runs)
        groups, problems = (
            groups_of(runs, scale.columns),
            None if problems is None else problems[known],
        )
        scale.roofline = CalibratedRoofline(LAWS[target])
        scale.roofline.fit(parts[known], measured[known], groups[known], problems)
        return scale

    def log_scale(self, runs: pd.DataFrame | Rows) -> np.ndarray:
        """Return the logarithm of the scale of every row: of the limit of its board for power."""
        if self.limit_w is None:
            return np.zeros(len(runs))
        return np.log(_limits_w(Rows.from_table(runs), self.limit_w))

    def log_range(self, runs: pd.DataFrame | Rows) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the logarithms of the least and the most that every row can have.

        They are infinite where a board does not say its limit; None is returned where nothing
        limits the target.
        """
        if self.shares is None:
            return None
        limits = np.log(_limits_w(Rows.from_table(runs), np.nan))
        low, high = (limits + np.log(share) for share in self.shares)
        return np.nan_to_num(low, nan=-np.inf), np.nan_to_num(high, nan=np.inf)

    def log_unit(self, features: FeatureSet, runs: pd.DataFrame | Rows) -> np.ndarray:
        """Return the logarithm of the unit of every row over its scale.

        Raises:
            PredictorError: training knew the rooflines of all its rows, and here one is missing.
        """
        if self.roofline is None:
            return np.zeros(len(runs))
        runs = features.without_unknown_specs(Rows.from_table(runs))
        parts = np.log(row_parts_ms(features.family, runs))
        known = np.isfinite(parts).all(axis=-1)
        if self.typical is not None:
            parts = np.where(known[..., None], parts, self.typical)
        elif not known.all():
            row = int(np.flatnonzero(~known)[0])
            raise PredictorError(
                f"row {row} lacks its device's peak rates (device.fp32_gflops, device.memory_gbps)"
                " or a size, which the predictor was trained with"
            )
        return self.roofline.log_value(parts, groups_of(runs, self.columns))

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        fields = {name: getattr(self, name) for name in ("columns", "typical", "limit_w", "shares")}
        return fields | {"roofline": self.roofline and self.roofline.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any], target: Target) -> Self:
        """Return what `to_json` wrote of the unit of ``target``."""
        roofline = data.pop("roofline")
        return cls(roofline and CalibratedRoofline.from_json(roofline, LAWS[target]), **data)


def _median_limit_w(runs: pd.DataFrame, log_w: np.ndarray) -> float:
    """Return the middle limit of the boards; where none says its own, the most that was drawn."""
    limits = _limits_w(Rows(runs), np.nan)
    known = np.isfinite(limits)
    return float(np.median(limits[known]) if known.any() else np.exp(log_w.max()))


def _limits_w(rows: Rows, unknown: float) -> np.ndarray:
    """Return the limit of every row's board, watts."""
    limits: Any = rows[POWER_LIMIT] if POWER_LIMIT in rows else np.nan
    return np.broadcast_to(np.where(np.greater(limits, 0.0), limits, unknown), len(rows))


def measured_rows(target: Target, runs: pd.DataFrame, renumber: bool = True) -> pd.DataFrame:
    """Return the rows that were measured successfully and have ``target``."""
    if target not in runs:
        return runs.iloc[:0]
    rows = runs[(runs["status"] == "ok") & runs[target].notna()]
    return rows.reset_index(drop=True) if renumber else rows


def usable_rows(target: Target, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that can teach ``target``: successful ones that have it.

    Raises:
        PredictorError: there are fewer than five.
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
    """Return the targets that ``runs`` can teach."""
    return [target for target in TARGETS if len(measured_rows(target, runs)) >= MIN_ROWS]


def training_rows(target: Target, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that have ``target``, and those that failed on the same devices."""
    has_target = runs[target].notna() if target in runs else pd.Series(False, runs.index)
    failed = (runs["status"] != "ok") & runs["device"].isin(runs.loc[has_target, "device"].unique())
    return runs[has_target | failed]
