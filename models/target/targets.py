"""Targets: the scale on which a quantity is learned, and the way back.

Runtime is learned as log(time / calibrated roofline): what is left is how far a run stays from what
its device does with such work, which carries over to other sizes far better than milliseconds do.
Power is learned as log(watts). Energy is always power × time, never a third model.
"""

from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import numpy as np
import pandas as pd

from foretune.errors import PredictorError
from foretune.features import FeatureSet, row_parts_ms, text_columns
from foretune.features.arrays import Rows, groups_of
from foretune.models.experts.calibrated_roofline import CalibratedRoofline

Target = Literal["time_ms", "power_w"]
TARGETS: tuple[Target, ...] = get_args(Target)
LEAST_ROWS = 5
"""Successful runs that teach a target."""


class Unit:
    """What a target is measured against.

    Attributes:
        roofline: the calibrated roofline, or None for plain milliseconds or watts.
        columns: text-valued configuration that it is calibrated apart for.
        typical: log of each part's time that stands for rows whose rooflines are not known; None
            where training knew all.
    """

    def __init__(
        self,
        roofline: CalibratedRoofline | None = None,
        columns: Sequence[str] = (),
        typical: Sequence[float] | None = None,
    ) -> None:
        self.roofline = roofline
        self.columns = list(columns)
        self.typical = typical

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
        if target != "time_ms" or not features.roofline_known_:
            return cls()
        parts = np.log(row_parts_ms(features.family, runs))
        known = np.isfinite(parts).all(axis=-1)
        if not known.any():
            return cls()
        typical = None if known.all() else np.median(parts[known], axis=0).tolist()
        columns = text_columns(runs)
        groups = groups_of(runs, columns)
        groups, problems = groups[known], None if problems is None else problems[known]
        roofline = CalibratedRoofline().fit(parts[known], log_target[known], groups, problems)
        return cls(roofline, columns, typical)

    def log(self, features: FeatureSet, runs: pd.DataFrame | Rows) -> np.ndarray:
        """Return the logarithm of the unit of every row.

        Raises:
            PredictorError: training knew the rooflines of all its rows, and here one is missing.
        """
        if self.roofline is None:
            return np.zeros(len(runs))
        runs = features.known(Rows.of(runs))
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
        return self.roofline.log_ms(parts, groups_of(runs, self.columns))

    def to_json(self) -> dict[str, Any] | None:
        """Return plain values that `from_json` reads."""
        if self.roofline is None:
            return None
        typical = {} if self.typical is None else {"typical": self.typical}
        return {**self.roofline.to_json(), "columns": self.columns, **typical}

    @classmethod
    def from_json(cls, data: dict[str, Any] | None) -> Self:
        """Return what `to_json` wrote."""
        if data is None:
            return cls()
        return cls(CalibratedRoofline.from_json(data), data["columns"], data.get("typical"))


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
    if len(rows) < LEAST_ROWS:
        raise PredictorError(
            f"only {len(rows)} successful runs with {target}: at least "
            f"{LEAST_ROWS} are needed, 100 are better"
        )
    return rows


def present_targets(runs: pd.DataFrame) -> list[Target]:
    """Return the targets that ``runs`` can teach."""
    return [target for target in TARGETS if len(measured_rows(target, runs)) >= LEAST_ROWS]


def telling_rows(target: Target, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that have ``target``, and those that failed on the same devices."""
    have = runs[target].notna() if target in runs else pd.Series(False, runs.index)
    failed = (runs["status"] != "ok") & runs["device"].isin(runs.loc[have, "device"].unique())
    return runs[have | failed]
