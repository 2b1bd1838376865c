"""What is believed of a call before anything of it is measured: by a predictor, or the estimate."""

import logging
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from foretune.device import Device
from foretune.errors import ForetuneError, ForetuneWarning, PredictorError
from foretune.measurement import Measurement
from foretune.objective import Objective
from foretune.search.rows import Rows
from foretune.search.searcher import Prior
from foretune.tune.triton.estimate import SPREAD, estimate
from foretune.tune.triton.options import Options

if TYPE_CHECKING:
    from foretune.models import Predictor


class Priors:
    """Asks a predictor where there is one that fits, and the estimate otherwise.

    Args:
        kernel: name of the function.
        source: identifies its code.
        device: where.
        options: name the predictor.
    """

    def __init__(self, kernel: str, source: str, device: Device, options: Options) -> None:
        self._device = device
        self._objective = options.goal
        if options.predictor == "auto":
            self._predictor = _shipped(kernel, source, device, options.goal)
        else:
            self._predictor = _load(options.predictor, kernel, options.goal)

    @property
    def predicts(self) -> bool:
        """Whether a predictor is asked."""
        return self._predictor is not None

    def of(self, rows: Rows) -> Prior:
        """Return what is believed of the candidates of one problem."""
        log_mean, p_valid = self._believed(rows)
        if self._predictor is None:
            return Prior(log_mean, SPREAD, p_valid, elsewhere=self._elsewhere)
        # a predictor says itself how sure it is of this device
        spread = self._predictor.log_spread(device=self._device.name)
        return Prior(log_mean, spread, p_valid, foreign=False, elsewhere=self._elsewhere)

    def _elsewhere(self, measurements: Sequence[Measurement]) -> np.ndarray:
        """Return what would have been believed of measurements of any problems."""
        return self._believed(Rows.of(measurements))[0]

    def _believed(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return the log of the objective, up to a constant per problem, and how likely it runs."""
        if self._predictor is not None:
            try:
                from foretune.search.prior import predicted_rows

                return predicted_rows(self._predictor, rows, self._device, self._objective)
            except ForetuneError as e:
                self._predictor = None
                warnings.warn(f"the predictor is not used: {e}", ForetuneWarning, stacklevel=2)
        fits = np.array([0.0 if s.get("fits") == 0 else 1.0 for s in rows.statics])
        return estimate(rows, self._device.specs), fits


def _shipped(kernel: str, source: str, device: Device, objective: Objective) -> "Predictor | None":
    """Return the predictor that comes with Foretune for this; the log says why there is none."""
    from foretune.models.saved.pretrained import NotShipped, find_pretrained

    targets = ["time_ms", "power_w"] if objective.needs_power else ["time_ms"]
    try:
        return find_pretrained(kernel, source, device, targets)
    except NotShipped as e:
        logging.getLogger(__name__).info("%s", e)
    except ForetuneError as e:
        warnings.warn(f"the shipped predictor is not used: {e}", ForetuneWarning, stacklevel=2)
    return None


def _load(
    predictor: "Predictor | str | os.PathLike[str] | None", kernel: str, objective: Objective
) -> "Predictor | None":
    """Return the predictor if it can be used for this kernel; otherwise warn."""
    if predictor is None:
        return None
    from foretune.models import Predictor

    try:
        found = predictor if isinstance(predictor, Predictor) else Predictor.load(predictor)
        if found.kernel_name_ != kernel:
            raise PredictorError(f"it knows {found.kernel_name_!r}, not {kernel!r}")
        if objective.needs_power and "power_w" not in found.targets_:
            raise PredictorError(f"it has not learned power, which {objective.value!r} needs")
        return found
    except ForetuneError as e:
        warnings.warn(f"the predictor is not used: {e}", ForetuneWarning, stacklevel=2)
        return None
