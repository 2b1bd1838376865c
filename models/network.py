"""Time, energy and memory of a whole network: the sum of its operators."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from foretune.datasets import newest_runs
from foretune.datasets.schema import columns_of
from foretune.device import Device
from foretune.errors import PredictorError
from foretune.features.candidates import rows_of
from foretune.features.roofline import row_limits_ms
from foretune.models.predictor import Predictor
from foretune.models.targets import MIN_ROWS
from foretune.registry import load, registered

if TYPE_CHECKING:
    from foretune.collect.networks.network import Network
    from foretune.collect.networks.operators import NetworkOperator

LINEAR = ("view", "host")
"""Kernels whose time is a constant plus a cost per size: trees would have too few rows."""
MAX_FACTOR = 4.0
"""Maximum ratio of an interval's ends to the value: with few rows, wider ones are meaningless."""
_KEYS = ("kernel", "problem.", "config.")
RowKey = tuple[tuple[str, Any], ...]
LinearTime = Callable[[Mapping[str, object]], float]
"""The time by problem: a constant plus a multiple of every size; no coefficient is negative."""
COLUMNS = ("time_ms", "time_ms_low", "time_ms_high", "power_w")


@dataclass(frozen=True)
class NetworkPrediction:
    """The predicted time, energy and memory of a network.

    ``operators`` has one row per distinct operator, largest share first: ``kernel``, ``problem``,
    ``count``, ``time_ms`` of one, ``time_ms_low`` and ``time_ms_high`` (90 %; the quartiles of a
    measurement), ``power_w`` (NaN without a meter) and ``source``: ``measured``, ``predicted`` or
    ``roofline``. ``memory_bytes``: weights, and the maximum of activations live at the same time.
    """

    operators: pd.DataFrame
    memory_bytes: int

    @property
    def time_ms(self) -> float:
        """Milliseconds of one run."""
        return float((self.operators["count"] * self.operators["time_ms"]).sum())

    @property
    def interval_ms(self) -> tuple[float, float]:
        """The 90 % interval of `time_ms`: operators' errors in quadrature.

        Errors of one kernel are taken as equal, those of different kernels as independent.
        """
        counts, errors = self.operators["count"], []
        for side in ("low", "high"):
            off = counts * (self.operators[f"time_ms_{side}"] - self.operators["time_ms"])
            by_kernel = off.groupby(self.operators["kernel"]).sum()
            errors.append(float(np.sqrt((by_kernel**2).sum())))
        return max(self.time_ms - errors[0], 0.0), self.time_ms + errors[1]

    @property
    def energy_mj(self) -> float:
        """Millijoules of one run; NaN if any operator was not metered."""
        table = self.operators
        return float((table["count"] * table["time_ms"] * table["power_w"]).sum(skipna=False))

    @property
    def unknown(self) -> list[str]:
        """Operators without a predictor: their times are rooflines."""
        table = self.operators[self.operators["source"] == "roofline"]
        return sorted({str(p.get("op", k)) for k, p in table[["kernel", "problem"]].to_numpy()})


class NetworkPredictor:
    """Predicts networks from measured operators, of this or of other networks.

    ``runs``: rows of ``foretune collect --operators MODEL.pt2``, of one device. Raises
    PredictorError if there are none.
    """

    def __init__(self, runs: pd.DataFrame) -> None:
        if "config.threads" not in runs or not (runs["status"] == "ok").any():
            raise PredictorError("no operator of a network was measured: collect some first")
        runs = newest_runs(runs[(runs["status"] == "ok") & runs["config.threads"].notna()])
        self._rows = {
            str(k): rows.dropna(axis="columns", how="all").reset_index(drop=True)
            for k, rows in runs.groupby("kernel", observed=True)
        }
        self._measured = {
            kernel: {self.key_of(row): row for row in rows.to_dict("records")}
            for kernel, rows in self._rows.items()
        }
        self._fitted: dict[str, Predictor | LinearTime] = {}

    @staticmethod
    def key_of(row: Mapping[Any, Any]) -> RowKey:
        """Return a key that identifies a row among those of one device."""
        named = ((str(c), v) for c, v in row.items())
        return tuple(sorted((c, v) for c, v in named if c.startswith(_KEYS) and pd.notna(v)))

    def predict(self, network: "Network", device: Device) -> NetworkPrediction:
        """Return the prediction of ``network`` on ``device``, on which the rows were measured."""
        table = pd.DataFrame(
            {
                "kernel": o.kernel,
                "problem": dict(o.problem),
                "count": count,
                **self._predict_operator(o, device),
            }
            for o, count in network.operators.items()
        )
        share = table["count"] * table["time_ms"]
        table = table.loc[share.sort_values(ascending=False).index].reset_index(drop=True)
        return NetworkPrediction(table, network.weight_bytes + network.activation_bytes)

    def _predict_operator(self, operator: "NetworkOperator", device: Device) -> dict[str, object]:
        rows = rows_of(operator.kernel, operator.problem, [operator.config], device)
        known = self._measured.get(operator.kernel, {}).get(self.key_of(rows.iloc[0]))
        if known is not None:
            ends = np.quantile(known["time_ms_samples"], (0.25, 0.75))
            power = known.get("power_w", np.nan)
            values = (known["time_ms"], *ends.tolist(), power)
            return {**dict(zip(COLUMNS, values, strict=True)), "source": "measured"}
        model = self._model(operator)
        if isinstance(model, Predictor):
            return {**_bounded(model.predict(rows).iloc[0]), "source": "predicted"}
        if model is not None:
            found, source = model(operator.problem), "predicted"
        else:
            found = roofline_ms(operator, device) * self._slowdown(operator.kernel)
            source = "roofline"
        return {**dict.fromkeys(COLUMNS, found), "power_w": np.nan, "source": source}

    def _slowdown(self, kernel: str) -> float:
        """Return the typical ratio of time to roofline, of the kernel's rows, else of all rows.

        The smaller half of the rows is left out, because launching takes most of their time.
        """
        known = {k: rows for k, rows in self._rows.items() if k not in LINEAR}
        chosen = {kernel: known[kernel]} if kernel in known else known
        if not chosen:
            return 1.0
        limits = np.concatenate([_rooflines_ms(k, rows) for k, rows in chosen.items()])
        times = np.concatenate([rows["time_ms"].to_numpy() for rows in chosen.values()])
        large = limits >= np.median(limits)
        return float(np.median(times[large] / limits[large]))

    def _model(self, operator: "NetworkOperator") -> Predictor | LinearTime | None:
        """Return the predictor of an operator; None without rows of its kernel and operation."""
        kernel, op = operator.kernel, operator.problem.get("op")
        if (rows := self._rows.get(kernel)) is None:
            return None
        if kernel not in LINEAR and (
            len(rows) < MIN_ROWS or not (op is None or (rows["problem.op"] == op).any())
        ):
            return None
        if kernel not in self._fitted:
            linear = kernel in LINEAR
            self._fitted[kernel] = _fit_linear(rows) if linear else Predictor().fit(rows)
        return self._fitted[kernel]


def _bounded(predicted: "pd.Series[Any]") -> dict[str, float]:
    """Return a prediction, with an interval that `MAX_FACTOR` limits."""
    found = {c: float(predicted.get(c, np.nan)) for c in COLUMNS}
    low, high = found["time_ms"] / MAX_FACTOR, found["time_ms"] * MAX_FACTOR
    return {
        **found,
        "time_ms_low": max(found["time_ms_low"], low),
        "time_ms_high": min(found["time_ms_high"], high),
    }


def roofline_ms(operator: "NetworkOperator", device: Device) -> float:
    """Return an operator's roofline in milliseconds; 0 if its kernel has no cost model.

    Raises PredictorError if the device's rates are unknown.
    """
    rows = rows_of(operator.kernel, operator.problem, [operator.config], device)
    if np.isnan(found := float(_rooflines_ms(operator.kernel, rows)[0])):
        raise PredictorError(f"the rates of {device.name} are unknown: no roofline")
    return found


def _rooflines_ms(kernel: str, rows: pd.DataFrame) -> np.ndarray:
    """Return the rooflines of rows; their threads get a share of the device's compute rate."""
    if kernel not in registered("families"):
        return np.zeros(len(rows))
    limits = row_limits_ms(load("families", kernel)(), rows)
    limits[:, 0] *= np.maximum(rows["device.cores"] / rows["config.threads"], 1.0)
    return np.asarray(limits.max(axis=1))


def _fit_linear(rows: pd.DataFrame) -> LinearTime:
    sizes = {
        c.removeprefix("problem."): rows[c]
        for c in columns_of(rows, "problem")
        if pd.api.types.is_numeric_dtype(rows[c])
    }
    X = np.column_stack([np.ones(len(rows)), *sizes.values()])
    from scipy.optimize import nnls

    constant, *costs = nnls(X, rows["time_ms"].to_numpy(dtype=float))[0].tolist()

    def predict(problem: Mapping[str, object]) -> float:
        parts = zip(sizes, costs, strict=True)
        return float(sum((cost * float(str(problem[name])) for name, cost in parts), constant))

    return predict
