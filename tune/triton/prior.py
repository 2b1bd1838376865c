"""Prior of a call: predictor, launch order, analytic estimate."""

import logging
import re
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from foretune.device import Device
from foretune.errors import ForetuneError, ForetuneWarning
from foretune.features.launches import TileLaunch, launch_features
from foretune.measurement import Measurement
from foretune.models.launch_order import LaunchOrder, shipped_order
from foretune.models.saved.search_predictor import PredictorRequest, SearchPredictor
from foretune.search.encoding import KernelRuns
from foretune.search.searcher import Prior
from foretune.tune.triton.options import Options
from foretune.values import FrozenParameters

LOG_TIME_SPREAD = 0.5
"""Standard deviation of the estimate's error in log time: a factor of 1.6."""
BALANCE_OPS_PER_BYTE = 64.0
"""Operations per byte of 16-bit operands above which matrix units decide, not loads."""
PREFERRED_ELEMENTS_PER_THREAD = {"tile": 64.0, "row": 16.0}
"""Elements per thread that run best: accumulators of matrix tiles, elements of rows."""
SPILLING_ELEMENTS_PER_THREAD = 256.0
"""Elements per thread that no longer fit 255 registers."""

MAX_GRID_CORRELATION = -0.5
"""Correlation of programs with tiles, both logarithms, below which a grid covers the problem."""
MAX_LOG_PADDING = np.log(64.0)

_TILE = re.compile(r"^(?:BLOCK|TILE|B)(?:_?SIZE)?_?([A-Z0-9]*)$", re.IGNORECASE)


def estimate(rows: KernelRuns, specs: Mapping[str, float]) -> np.ndarray:
    """Return the log time of each run of a kernel, up to a constant per problem.

    It uses ``cores`` of the device's ``specs``.
    """
    result = np.zeros(len(rows))
    waves = rows.waves(specs)
    known = np.isfinite(waves) & (waves > 0)
    result[known] += np.log(np.ceil(waves[known]) / waves[known])
    edges = [tile_edges(c) for c in rows.configs]
    for numbers in rows.by_problem().values():
        result[numbers] += _padding_penalty(rows.programs[numbers], [edges[i] for i in numbers])
    for i, warps in enumerate(rows.warps):
        result[i] += _tile_factor(edges[i], 32.0 * warps)
    return result


def _padding_penalty(programs: np.ndarray, edges: Sequence[Mapping[str, float]]) -> np.ndarray:
    """Return the log of the area that all tiles cover, relative to the smallest such area.

    It is 0 if the number of programs does not depend on the tile: persistent kernels.
    """
    area = np.array([e.get("M", 1.0) * e.get("N", 1.0) * e.get("", 1.0) for e in edges])
    nothing = np.zeros(len(area))
    if not (programs > 0).all() or np.ptp(area) == 0 or np.ptp(programs) == 0:
        return nothing
    if np.corrcoef(np.log(programs), np.log(area))[0, 1] > MAX_GRID_CORRELATION:
        return nothing
    covered = np.log(programs * area)
    return np.minimum(covered - covered.min(), MAX_LOG_PADDING)


def _tile_factor(edges: Mapping[str, float], threads: float) -> float:
    if not edges:
        return 0.0
    if "M" in edges and "N" in edges:
        m, n = edges["M"], edges["N"]
        return _memory_stall_penalty(m * n / (m + n)) + _occupancy_penalty(m * n / threads, "tile")
    return _occupancy_penalty(float(np.prod(list(edges.values()))) / threads, "row")


def _memory_stall_penalty(intensity: float) -> float:
    """Return the log slow-down by memory stalls, given operations per byte."""
    return float(np.logaddexp(0.0, 2 * np.log(BALANCE_OPS_PER_BYTE / intensity)) / 2)


def _occupancy_penalty(elements: float, kind: str) -> float:
    """Return the log slow-down by too few or too many elements per thread."""
    octaves = np.log2(elements / PREFERRED_ELEMENTS_PER_THREAD[kind])
    spilled = max(float(np.log2(elements / SPILLING_ELEMENTS_PER_THREAD)), 0.0)
    return float(0.02 * octaves**2 + 0.7 * spilled)


def tile_edges(config: FrozenParameters) -> dict[str, float]:
    """Return the edges of a configuration's tile by the last letter of their names."""
    edges: dict[str, float] = {}
    for name, value in config.items():
        found = _TILE.match(name)
        if found and isinstance(value, int) and value > 0:
            edges[found[1].upper()] = float(value)
    return edges


EXPECTED_LOG_RATIO = "expected_log_ratio"
"""Key in `Measurement.static`: log time over the fastest candidate's, by the launch order. It is
stored because it cannot be computed later without the call."""
ORDER_SPREAD_SHARE = 0.5
"""Share of the launch order's error used as prior spread; the searcher's process adds the rest."""
UNFIT_PROBABILITY = 0.02
"""Probability that a configuration runs although a rule says it exceeds shared memory."""


class PriorFactory:
    """Makes priors from a predictor, else from the launch order, else from the analytic estimate.

    Args:
        kernel: name of the function.
        source: hash of its code.
        device: the device.
        options: name the predictor.
        order: the launch order; None for the one shipped with Foretune.

    Raises:
        PredictorError, TrackingError, UsageError: the named predictor cannot be used.
    """

    def __init__(
        self,
        kernel: str,
        source: str,
        device: Device,
        options: Options,
        order: LaunchOrder | None = None,
    ) -> None:
        self._device, self._order = device, order
        self._objective = options.parsed_objective
        self._guide: SearchPredictor | None = None
        if options.predictor is not None:
            from foretune.models.saved.lookup import find_search_predictor

            power = options.parsed_objective.needs_power
            use = PredictorRequest(
                kernel, source, device, ("time_ms", "power_w") if power else ("time_ms",)
            )
            self._guide = find_search_predictor(
                options.predictor, use, logging.getLogger(__name__).info
            )

    @property
    def predicts(self) -> bool:
        """Whether priors come from a predictor."""
        return self._guide is not None

    def make_prior(self, rows: KernelRuns, launches: Sequence[TileLaunch] | None = None) -> Prior:
        """Return the prior of one problem's candidates.

        ``launches`` are their tile launches (`tile_launches`); None if unknown.
        """
        if (predicted := self._predict(rows)) is not None:
            assert self._guide is not None
            # the spread is smaller on devices that the predictor was trained on
            spread = self._guide.log_spread(self._device)
            return Prior(
                predicted[0], spread, predicted[1], bool(self._guide.mismatch), self._log_mean_of
            )
        if launches is None:
            valid = np.ones(len(rows))
            return Prior(
                self._estimate(rows), LOG_TIME_SPREAD, valid, log_mean_of=self._log_mean_of
            )
        columns, order = launch_features(launches, self._device), self._order or shipped_order()
        fits = np.where(columns.fits, 1.0, UNFIT_PROBABILITY)
        spread = ORDER_SPREAD_SHARE * order.spread
        return Prior(order.log_ratios(columns), spread, fits, log_mean_of=self._log_mean_of)

    def _log_mean_of(self, measurements: Sequence[Measurement]) -> np.ndarray:
        """Return the prior log mean of measurements of any problem."""
        rows = KernelRuns.from_measurements(measurements)
        if (predicted := self._predict(rows)) is not None:
            return predicted[0]
        log_mean = self._estimate(rows)
        for numbers in rows.by_problem().values():
            then = [rows.statics[i].get(EXPECTED_LOG_RATIO, np.nan) for i in numbers]
            if np.isfinite(then).all():
                log_mean[numbers] = then
        return log_mean

    def _estimate(self, rows: KernelRuns) -> np.ndarray:
        return estimate(rows, self._device.specs)

    def _predict(self, rows: KernelRuns) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the predictor's log objective and probability to run; None without one."""
        if self._guide is None:
            return None
        from foretune.search.prior import predict_runs

        try:
            return predict_runs(self._guide.predictor, rows, self._device, self._objective)
        except ForetuneError as e:
            if not self._guide.shipped:
                raise
            self._guide = None
            message = f"the shipped predictor is not used: {e}"
            warnings.warn(message, ForetuneWarning, stacklevel=2)
            return None
