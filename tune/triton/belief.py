"""What is believed of a kernel before anything of it is measured: a predictor, or the estimate."""

import logging
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foretune.device import Device
from foretune.errors import ForetuneError, ForetuneWarning, PredictorError
from foretune.objective import Objective
from foretune.tune.triton.estimate import SPREAD, estimate
from foretune.tune.triton.options import Options
from foretune.tune.triton.rows import Rows

if TYPE_CHECKING:
    from foretune.models import Predictor


@dataclass(frozen=True)
class Believed:
    """What is believed of some runs.

    Attributes:
        log_value: logarithm of the objective, up to a constant per problem.
        p_valid: probability that each runs at all.
    """

    log_value: np.ndarray
    p_valid: np.ndarray


class Beliefs:
    """Believes a predictor where there is one that fits, and the estimate otherwise.

    Args:
        kernel: name of the function.
        source: identifies its code.
        device: where.
        options: name the predictor.
    """

    def __init__(self, kernel: str, source: str, device: Device, options: Options) -> None:
        self._kernel = kernel
        self._device = device
        self._objective = options.goal
        if options.predictor == "auto":
            self._predictor = _shipped(kernel, source, device, options.goal)
        else:
            self._predictor = _load(options.predictor, kernel, options.goal)

    @property
    def spread(self) -> float:
        """Standard deviation of the error, in log."""
        if self._predictor is None:
            return SPREAD
        return self._predictor.log_spread(device=self._device.name)

    @property
    def predicts(self) -> bool:
        """Whether a predictor is believed."""
        return self._predictor is not None

    def of(self, rows: Rows) -> Believed:
        """Return what is believed of ``rows``."""
        if self._predictor is not None:
            try:
                return self._predicted(self._predictor, rows)
            except ForetuneError as e:
                self._predictor = None
                warnings.warn(f"the predictor is not used: {e}", ForetuneWarning, stacklevel=2)
        fits = np.array([0.0 if s.get("fits") == 0 else 1.0 for s in rows.statics])
        return Believed(estimate(rows, self._device.specs), fits)

    def log_value(self, rows: Rows) -> np.ndarray:
        """Return the logarithm of the objective of ``rows``, up to a constant per problem."""
        return self.of(rows).log_value

    def _predicted(self, predictor: "Predictor", rows: Rows) -> Believed:
        import pandas as pd

        from foretune.features.candidates import rows_of

        parts = [
            rows_of(self._kernel, problem, rows.of_problem(problem), self._device)
            for problem in dict.fromkeys(rows.problems)
        ]
        order = np.argsort(_by_problem(rows), kind="stable")
        table = predictor.predict(pd.concat(parts, ignore_index=True))
        watts = table["power_w"].to_numpy() if "power_w" in table else np.nan
        value = self._objective.of(table["time_ms"].to_numpy(), watts)
        log_value, p_valid = np.empty(len(rows)), np.empty(len(rows))
        log_value[order], p_valid[order] = np.log(value), table["p_valid"]
        return Believed(log_value, p_valid)


def _by_problem(rows: Rows) -> np.ndarray:
    number = {p: i for i, p in enumerate(dict.fromkeys(rows.problems))}
    return np.array([number[p] for p in rows.problems])


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
