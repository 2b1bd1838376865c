"""What is believed of a call before anything of it is measured: by a predictor, or the estimate."""

import logging
import warnings
from collections.abc import Sequence

import numpy as np

from foretune.device import Device
from foretune.errors import ForetuneError, ForetuneWarning
from foretune.measurement import Measurement
from foretune.models.saved.guide import Guide, Use
from foretune.search.rows import Rows
from foretune.search.searcher import Prior
from foretune.tune.triton.estimate import SPREAD, estimate
from foretune.tune.triton.options import Options


class Priors:
    """Asks a predictor where there is one that fits, and the estimate otherwise.

    Args:
        kernel: name of the function.
        source: identifies its code.
        device: where.
        options: name the predictor.

    Raises:
        PredictorError, TrackingError, UsageError: the predictor that is named cannot be used.
    """

    def __init__(self, kernel: str, source: str, device: Device, options: Options) -> None:
        self._device = device
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

    def of(self, rows: Rows) -> Prior:
        """Return what is believed of the candidates of one problem."""
        log_mean, p_valid = self._believed(rows)
        if self._guide is None:
            return Prior(log_mean, SPREAD, p_valid, elsewhere=self._elsewhere)
        # a predictor says itself how sure it is of a device it knows
        spread = self._guide.predictor.log_spread(device=self._device.name)
        foreign = bool(self._guide.foreign)
        return Prior(log_mean, spread, p_valid, foreign, elsewhere=self._elsewhere)

    def _elsewhere(self, measurements: Sequence[Measurement]) -> np.ndarray:
        """Return what would have been believed of measurements of any problems."""
        return self._believed(Rows.of(measurements))[0]

    def _believed(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return the log of the objective, up to a constant per problem, and how likely it runs."""
        if self._guide is not None:
            from foretune.search.prior import predicted_rows

            try:
                return predicted_rows(self._guide.predictor, rows, self._device, self._objective)
            except ForetuneError as e:
                if not self._guide.shipped:
                    raise
                self._guide = None
                message = f"the shipped predictor is not used: {e}"
                warnings.warn(message, ForetuneWarning, stacklevel=2)
        fits = np.array([0.0 if s.get("fits") == 0 else 1.0 for s in rows.statics])
        return estimate(rows, self._device.specs), fits
