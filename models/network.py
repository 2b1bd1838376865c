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
from foretune.models.target_names import MIN_ROWS
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
        below = self._total_error("time_ms_low")
        above = self._total_error("time_ms_high")
        return max(self.time_ms - below, 0.0), self.time_ms + above

    def _total_error(self, end: str) -> float:
        """Return the distance of the time from an end of the interval, over all operators."""
        distances = self.operators[end] - self.operators["time_ms"]
        totals = self.operators["count"] * distances
        of_kernels = totals.groupby(self.operators["kernel"]).sum()
        return float(np.sqrt((of_kernels**2).sum()))

    @property
    def energy_mj(self) -> float:
        """Millijoules of one run; NaN if any operator was not metered."""
        table = self.operators
        return float((table["count"] * table["time_ms"] * table["power_w"]).sum(skipna=False))

    @property
    def unknown(self) -> list[str]:
        """Operators without a predictor: their times are rooflines."""
        by_roofline = self.operators[self.operators["source"] == "roofline"]
        return sorted(
            {str(row["problem"].get("op", row["kernel"])) for _, row in by_roofline.iterrows()}
        )


class NetworkPredictor:
    """Predicts networks from measured operators, of this or of other networks.

    ``runs``: rows of ``foretune collect --operators MODEL.pt2``, of one device. Raises
    PredictorError if there are none.
    """

    def __init__(self, runs: pd.DataFrame) -> None:
        if "config.threads" not in runs or not (runs["status"] == "ok").any():
            raise PredictorError("no operator of a network was measured: collect some first")
        is_of_operator = (runs["status"] == "ok") & runs["config.threads"].notna()
        measured = newest_runs(runs[is_of_operator])
        self._rows: dict[str, pd.DataFrame] = {}
        """Runs by kernel."""
        self._measured: dict[str, dict[RowKey, Mapping[Any, Any]]] = {}
        """The same, a run by its operator."""
        for name, runs_of_kernel in measured.groupby("kernel", observed=True):
            rows = runs_of_kernel.dropna(axis="columns", how="all").reset_index(drop=True)
            self._rows[str(name)] = rows
            self._measured[str(name)] = {self.key_of(row): row for row in rows.to_dict("records")}
        self._fitted: dict[str, Predictor | LinearTime] = {}

    @staticmethod
    def key_of(row: Mapping[Any, Any]) -> RowKey:
        """Return a key that identifies a row among those of one device."""
        cells = [(str(column), value) for column, value in row.items()]
        return tuple(sorted((c, v) for c, v in cells if c.startswith(_KEYS) and pd.notna(v)))

    def predict(self, network: "Network", device: Device) -> NetworkPrediction:
        """Return the prediction of ``network`` on ``device``, on which the rows were measured."""
        table = pd.DataFrame(
            {
                "kernel": operator.kernel,
                "problem": dict(operator.problem),
                "count": count,
                **self._predict_operator(operator, device),
            }
            for operator, count in network.operators.items()
        )
        total_ms = table["count"] * table["time_ms"]
        longest_first = total_ms.sort_values(ascending=False).index
        return NetworkPrediction(
            operators=table.loc[longest_first].reset_index(drop=True),
            memory_bytes=network.weight_bytes + network.activation_bytes,
        )

    def _predict_operator(self, operator: "NetworkOperator", device: Device) -> dict[str, object]:
        """Return the cells of `COLUMNS` for one operator, and the ``source`` of its time."""
        rows = rows_of(operator.kernel, operator.problem, [operator.config], device)
        measured = self._measured.get(operator.kernel, {}).get(self.key_of(rows.iloc[0]))
        if measured is not None:
            low_ms, high_ms = np.quantile(measured["time_ms_samples"], (0.25, 0.75)).tolist()
            return {
                "time_ms": measured["time_ms"],
                "time_ms_low": low_ms,
                "time_ms_high": high_ms,
                "power_w": measured.get("power_w", np.nan),
                "source": "measured",
            }

        model = self._model(operator)
        if isinstance(model, Predictor):
            return {**_bounded(model.predict(rows).iloc[0]), "source": "predicted"}
        if model is not None:
            time_ms = model(operator.problem)
            source = "predicted"
        else:
            time_ms = roofline_ms(operator, device) * self._slowdown(operator.kernel)
            source = "roofline"
        return {**dict.fromkeys(COLUMNS, time_ms), "power_w": np.nan, "source": source}

    def _slowdown(self, kernel: str) -> float:
        """Return the typical ratio of time to roofline, of the kernel's rows, else of all rows.

        The smaller half of the rows is left out, because launching takes most of their time.
        """
        candidates = {name: rows for name, rows in self._rows.items() if name not in LINEAR}
        if kernel in candidates:
            candidates = {kernel: candidates[kernel]}
        if not candidates:
            return 1.0
        limits_ms = np.concatenate([_rooflines_ms(name, r) for name, r in candidates.items()])
        times_ms = np.concatenate([rows["time_ms"].to_numpy() for rows in candidates.values()])
        is_large = limits_ms >= np.median(limits_ms)
        return float(np.median(times_ms[is_large] / limits_ms[is_large]))

    def _model(self, operator: "NetworkOperator") -> Predictor | LinearTime | None:
        """Return the predictor of an operator; None without rows of its kernel and operation."""
        kernel = operator.kernel
        rows = self._rows.get(kernel)
        if rows is None:
            return None
        if kernel not in LINEAR:
            op = operator.problem.get("op")
            knows_op = op is None or (rows["problem.op"] == op).any()
            if len(rows) < MIN_ROWS or not knows_op:
                return None
        if kernel not in self._fitted:
            is_linear = kernel in LINEAR
            self._fitted[kernel] = _fit_linear(rows) if is_linear else Predictor().fit(rows)
        return self._fitted[kernel]


def _bounded(predicted: "pd.Series[Any]") -> dict[str, float]:
    """Return a prediction, with an interval that `MAX_FACTOR` limits."""
    cells = {column: float(predicted.get(column, np.nan)) for column in COLUMNS}
    cells["time_ms_low"] = max(cells["time_ms_low"], cells["time_ms"] / MAX_FACTOR)
    cells["time_ms_high"] = min(cells["time_ms_high"], cells["time_ms"] * MAX_FACTOR)
    return cells


def roofline_ms(operator: "NetworkOperator", device: Device) -> float:
    """Return an operator's roofline in milliseconds; 0 if its kernel has no cost model.

    Raises PredictorError if the device's rates are unknown.
    """
    rows = rows_of(operator.kernel, operator.problem, [operator.config], device)
    limit_ms = float(_rooflines_ms(operator.kernel, rows)[0])
    if np.isnan(limit_ms):
        raise PredictorError(f"the rates of {device.name} are unknown: no roofline")
    return limit_ms


def _rooflines_ms(kernel: str, rows: pd.DataFrame) -> np.ndarray:
    """Return the rooflines of rows; their threads get a share of the device's compute rate."""
    if kernel not in registered("families"):
        return np.zeros(len(rows))
    limits = row_limits_ms(load("families", kernel)(), rows)
    limits[:, 0] *= np.maximum(rows["device.cores"] / rows["config.threads"], 1.0)
    return np.asarray(limits.max(axis=1))


def _fit_linear(rows: pd.DataFrame) -> LinearTime:
    """Fit a constant and a cost per size to the times of one kernel."""
    from scipy.optimize import nnls

    sizes = {}
    for column in columns_of(rows, "problem"):
        if pd.api.types.is_numeric_dtype(rows[column]):
            sizes[column.removeprefix("problem.")] = rows[column]
    X = np.column_stack([np.ones(len(rows)), *sizes.values()])
    coefficients, _ = nnls(X, rows["time_ms"].to_numpy(dtype=float))
    constant, *costs = coefficients.tolist()
    cost_of_size = dict(zip(sizes, costs, strict=True))

    def predict(problem: Mapping[str, object]) -> float:
        time_ms = constant
        for name, cost in cost_of_size.items():
            time_ms += cost * float(str(problem[name]))
        return float(time_ms)

    return predict
