"""Predictions for the parameter values of an Optuna study."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from foretune.device import Device
from foretune.errors import UsageError
from foretune.models.predictor import Predictor
from foretune.models.saved.guides import SearchPredictor
from foretune.models.saved.lookup import PredictorSource, read_guide
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.search.encoding import KernelRuns
from foretune.search.prior import ANY_DEVICE, predict_runs
from foretune.space import Configuration
from foretune.values import Value

MIN_P_VALID = 0.05
"""Lower bound of a predicted probability to run."""


class PredictorPrior:
    """Predicts log values of a problem's configurations, each once.

    Args:
        named: the predictor or any model (`foretune.models.saved.lookup`).
        problem: the problem that is tuned.
        device: the device; None is the predictor's only training device, or none in particular.
        objective: the value that the study minimizes.

    Raises:
        PredictorError, TrackingError, UsageError: there is no such predictor, no problem is given,
            or the predictor has several training devices and none is named.
    """

    def __init__(
        self,
        named: PredictorSource,
        problem: Mapping[str, Value] | None,
        device: Device | None = None,
        objective: Objective = Objective.TIME,
    ) -> None:
        if problem is None:
            raise UsageError("a predictor needs the problem: give problem={'M': …, 'N': …}")
        model = read_guide(named)
        self._problem, self._objective = Problem(problem), objective
        if device is None:
            device = model.device() if isinstance(model, Predictor) else ANY_DEVICE
        guide = SearchPredictor.for_device(model, device)
        self._predictor, self._device = guide.predictor, device
        self._known: dict[Configuration, tuple[float, float]] = {}
        self.foreign = bool(guide.mismatch)
        """Whether it comes from another device, which the sampler checks early."""
        self.spread = guide.log_spread(device)
        """Standard deviation of its log errors."""

    def predict(self, params: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
        """Return predicted log values and probabilities to run.

        Raises:
            PredictorError: a parameter that it learned from is missing.
        """
        configs = [Configuration(p) for p in params]
        if new := [c for c in dict.fromkeys(configs) if c not in self._known]:
            rows = KernelRuns([self._problem] * len(new), new, [{}] * len(new))
            predicted = predict_runs(self._predictor, rows, self._device, self._objective)
            self._known.update(
                zip(new, zip(*(s.tolist() for s in predicted), strict=True), strict=True)
            )
        logs, valid = np.array([self._known[c] for c in configs]).reshape(-1, 2).T
        return logs, np.maximum(valid, MIN_P_VALID)
