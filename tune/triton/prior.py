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
from foretune.features.launches import TileLaunch, launch_columns
from foretune.measurement import Measurement
from foretune.models.launch_order import LaunchOrder, shipped_order
from foretune.models.saved.guide import Guide, Use
from foretune.search.rows import Rows
from foretune.search.searcher import Prior
from foretune.tune.triton.estimate import SPREAD, estimate, spilling
from foretune.tune.triton.options import Options

EXPECTED = "expected_log_ratio"
"""What a measurement's `static` calls what the order of launches expected of it: the logarithm of
its time over the best one's. The call that told is gone when other problems ask."""
SMOOTH = 0.5
"""Part of the order's error that the search is told of: it doubts the slope by itself as much."""
UNFIT = 0.02
"""How likely what does not fit shared memory, by a rule, is to run."""


class Priors:
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
        self._objective = options.goal
        self._guide: Guide | None = None
        if options.predictor is not None:
            from foretune.models.saved.named import find_guide

            power = options.goal.needs_power
            use = Use(kernel, source, device, ("time_ms", "power_w") if power else ("time_ms",))
            self._guide = find_guide(options.predictor, use, logging.getLogger(__name__).info)

    @property
    def predicts(self) -> bool:
        """Whether a predictor is asked."""
        return self._guide is not None

    def of(self, rows: Rows, launches: Sequence[TileLaunch] | None = None) -> Prior:
        """Return what is believed of the candidates of one problem.

        Args:
            rows: the candidates.
            launches: what each launches (`tile_launches`); None where nobody knows.
        """
        if (said := self._guided(rows)) is not None:
            assert self._guide is not None
            # a predictor says itself how sure it is of a device it knows
            spread = self._guide.predictor.log_spread(device=self._device.name)
            return Prior(said[0], spread, said[1], bool(self._guide.foreign), self._elsewhere)
        fits = np.array([0.0 if s.get("fits") == 0 else 1.0 for s in rows.statics])
        if launches is None:
            return Prior(self._estimated(rows), SPREAD, fits, elsewhere=self._elsewhere)
        columns, order = launch_columns(launches, self._device), self._order or shipped_order()
        log_mean = order.log_ratios(columns) + np.array([spilling(s) for s in rows.statics])
        fits = np.where(columns.fits, fits, np.minimum(fits, UNFIT))
        return Prior(log_mean, SMOOTH * order.spread, fits, elsewhere=self._elsewhere)

    def _elsewhere(self, measurements: Sequence[Measurement]) -> np.ndarray:
        """Return what would have been believed of measurements of any problems."""
        rows = Rows.of(measurements)
        if (said := self._guided(rows)) is not None:
            return said[0]
        believed = self._estimated(rows)
        for numbers in rows.by_problem().values():
            then = [rows.statics[i].get(EXPECTED, np.nan) for i in numbers]
            if np.isfinite(then).all():
                believed[numbers] = then
        return believed

    def _estimated(self, rows: Rows) -> np.ndarray:
        return estimate(rows, self._device.specs)

    def _guided(self, rows: Rows) -> tuple[np.ndarray, np.ndarray] | None:
        """Return what the predictor says, if there is one: log objective, how likely it runs."""
        if self._guide is None:
            return None
        from foretune.search.prior import predicted_rows

        try:
            return predicted_rows(self._guide.predictor, rows, self._device, self._objective)
        except ForetuneError as e:
            if not self._guide.shipped:
                raise
            self._guide = None
            message = f"the shipped predictor is not used: {e}"
            warnings.warn(message, ForetuneWarning, stacklevel=2)
            return None
