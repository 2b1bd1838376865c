"""A predictor's opinion of the parameters of Optuna's trials."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from foretune.device import Device
from foretune.errors import UsageError
from foretune.models.guides.guide import make_guide
from foretune.models.saved.lookup import PredictorSource, read_model
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.search.encoding import KernelRuns
from foretune.search.prior import PriorValues, predict_runs
from foretune.space import Configuration
from foretune.values import Value

MIN_P_VALID = 0.05  # lower bound of a predicted probability to run


class PredictorPrior:
    """Predicts log values of a problem's configurations, each once.

    ``named`` is the predictor or any model (`foretune.models.saved.lookup`). ``device`` is by
    default the predictor's only training device, or none for other models. Raises PredictorError,
    TrackingError, UsageError if there is no such predictor, no problem is given, or the predictor
    has several training devices and none is named.

    Attributes:
        foreign: whether it comes from another device, so that the sampler checks it early.
        spread: standard deviation of its log errors.
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
        self._guide = make_guide(read_model(named), device)
        self._problem = Problem(problem)
        self._objective = objective
        self.foreign = bool(self._guide.mismatch)
        self.spread = self._guide.log_spread()

        # Predictions are cached, because a study asks for the same trials at every suggestion.
        self._log_mean: dict[Configuration, float] = {}
        self._p_valid: dict[Configuration, float] = {}

    def predict(self, params: Sequence[Mapping[str, Any]]) -> PriorValues:
        """Return what is predicted of each trial's parameters.

        Raises PredictorError if a parameter that it learned from is missing.
        """
        configs = [Configuration(p) for p in params]
        new = [config for config in dict.fromkeys(configs) if config not in self._log_mean]
        if new:
            rows = KernelRuns([self._problem] * len(new), new, statics=[{}] * len(new))
            predicted = predict_runs(self._guide, rows, self._objective)
            self._log_mean.update(zip(new, predicted.log_mean.tolist(), strict=True))
            self._p_valid.update(zip(new, predicted.p_valid.tolist(), strict=True))

        log_mean = np.array([self._log_mean[config] for config in configs])
        p_valid = np.array([self._p_valid[config] for config in configs])
        return PriorValues(log_mean, np.maximum(p_valid, MIN_P_VALID))
