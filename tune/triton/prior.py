"""What is believed of a call before anything of it is measured.

A predictor of the kernel knows best; the order of launches knows kernels that multiply tiles; the
estimate is for all others.
"""

import logging
import warnings
from collections.abc import Sequence

import numpy as np

from foretune.device import Device
from foretune.errors import ForetuneError, ForetuneWarning
from foretune.features.launches import TileLaunch, launch_features
from foretune.measurement import Measurement
from foretune.models.launch_order import LaunchOrder, shipped_order
from foretune.models.saved.guide import PredictorRequest, SearchPredictor
from foretune.search.rows import KernelRuns
from foretune.search.searcher import Prior
from foretune.tune.triton.estimate import LOG_TIME_SPREAD, estimate, spill_penalty
from foretune.tune.triton.options import Options

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
            from foretune.models.saved.named import find_search_predictor

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
        fits = np.array([0.0 if s.get("fits") == 0 else 1.0 for s in rows.statics])
        if launches is None:
            return Prior(self._estimate(rows), LOG_TIME_SPREAD, fits, log_mean_of=self._log_mean_of)
        columns, order = launch_features(launches, self._device), self._order or shipped_order()
        log_mean = order.log_ratios(columns) + np.array([spill_penalty(s) for s in rows.statics])
        fits = np.where(columns.fits, fits, np.minimum(fits, UNFIT_PROBABILITY))
        return Prior(
            log_mean, ORDER_SPREAD_SHARE * order.spread, fits, log_mean_of=self._log_mean_of
        )

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
