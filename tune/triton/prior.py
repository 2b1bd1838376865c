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
    """Return the logarithm of each row's time, up to a constant per problem.

    Args:
        rows: of one kernel.
        specs: of the device; ``cores`` is used.
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
    """Return the logarithm of how much more than needed the tiles of all programs cover.

    Nothing where the number of programs does not follow from the tile: they take tiles in turn.

    Args:
        programs: of one problem's rows.
        edges: of their tiles.
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
    """Return the logarithm of what waiting for loads costs, given operations per byte."""
    return float(np.logaddexp(0.0, 2 * np.log(BALANCE_OPS_PER_BYTE / intensity)) / 2)


def _occupancy_penalty(elements: float, kind: str) -> float:
    """Return the logarithm of what too few or too many elements per thread cost."""
    octaves = np.log2(elements / PREFERRED_ELEMENTS_PER_THREAD[kind])
    spilled = max(float(np.log2(elements / SPILLING_ELEMENTS_PER_THREAD)), 0.0)
    return float(0.02 * octaves**2 + 0.7 * spilled)


def tile_edges(config: FrozenParameters) -> dict[str, float]:
    """Return the edges of a configuration's tile, by the letters that its names end in."""
    edges: dict[str, float] = {}
    for name, value in config.items():
        found = _TILE.match(name)
        if found and isinstance(value, int) and value > 0:
            edges[found[1].upper()] = float(value)
    return edges


EXPECTED_LOG_RATIO = "expected_log_ratio"
"""What a measurement's `static` calls what the order of launches expected of it: the logarithm of
its time over the best one's. The call that told is gone when other problems ask."""
ORDER_SPREAD_SHARE = 0.5
"""Part of the order's error that the search is told of: it doubts the slope by itself as much."""
UNFIT_PROBABILITY = 0.02
"""How likely what does not fit shared memory, by a rule, is to run."""


class PriorFactory:
    """Asks a predictor where there is one that fits, else the order of launches, else the estimate.

    Args:
        kernel: name of the function.
        source: identifies its code.
        device: where.
        options: name the predictor.
        order: of launches; None takes the one that comes with Foretune.

    Raises:
        PredictorError, TrackingError, UsageError: the predictor that is named cannot be used.
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
        """Whether a predictor is asked."""
        return self._guide is not None

    def make_prior(self, rows: KernelRuns, launches: Sequence[TileLaunch] | None = None) -> Prior:
        """Return what is believed of the candidates of one problem.

        Args:
            rows: the candidates.
            launches: what each launches (`tile_launches`); None where nobody knows.
        """
        if (predicted := self._predict(rows)) is not None:
            assert self._guide is not None
            # a predictor says itself how sure it is of a device it knows
            spread = self._guide.predictor.log_spread(device=self._device.name)
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
        """Return what would have been believed of measurements of any problems."""
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
        """Return what the predictor says, if there is one: log objective, how likely it runs."""
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
