"""Samplers of Optuna (Akiba et al., KDD 2019) as searchers."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import Trial, TrialState, create_trial

from foretune.errors import UsageError
from foretune.search.searcher import Searcher
from foretune.space import ABSENT, Configuration
from foretune.support.lazy import require
from foretune.values import Value

MAX_RETRIES = 20
"""Invalid or repeated proposals before the nearest free configuration is taken."""
NEAREST_SAMPLE = 8000
"""Random configurations from which the nearest is taken in spaces too large to enumerate."""


class OptunaSearcher(Searcher):
    """Gets its proposals from an Optuna sampler.

    Samplers do not know the restrictions. A proposal outside the space is answered with infinity, a
    repeated one with its measurement; neither costs an evaluation. After `MAX_RETRIES` of them, the
    nearest free configuration is proposed. Numbers are passed by their position among a parameter's
    values, strings as choices.

    ``args`` and ``named`` are those of `Searcher`, whose seed does not apply to ``sampler``. The
    sampler serves one search only. Raises UsageError if there is none.
    """

    def __init__(self, *args: Any, sampler: BaseSampler | None = None, **named: Any) -> None:
        self._sampler = sampler
        super().__init__(*args, **named)

    def _prepare(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._distributions = {
            name: self._distribution(values) for name, values in self.space.parameters.items()
        }
        with warnings.catch_warnings(action="ignore"):  # experimental features
            self._study = optuna.create_study(sampler=self._make_sampler())
        self._pending_trials: dict[int, Trial] = {}
        """Trials without a result, by configuration number."""

    def _make_sampler(self) -> BaseSampler:
        if self._sampler is None:
            raise UsageError("give a sampler: OptunaSearcher(space, sampler=…)")
        return self._sampler

    def _distribution(self, values: Sequence[Value]) -> BaseDistribution:
        """Return Optuna's distribution of a parameter: a range of positions, or choices."""
        if any(isinstance(value, str) for value in values):
            return CategoricalDistribution(values)
        return _positions(values)

    def _propose(self, n: int) -> list[int]:
        numbers: list[int] = []
        while len(numbers) < n:
            numbers.append(self._ask(self.proposed.union(numbers)))
        return numbers

    def _ask(self, taken: set[int]) -> int:
        """Return the number of the sampler's next configuration that is not ``taken``."""
        config = Configuration()
        for _ in range(MAX_RETRIES):
            with warnings.catch_warnings(action="ignore"):  # infinite values
                trial = self._study.ask(self._distributions)
            config = self._decoded(trial.params)
            number = self.space.index_or_none(config)
            if number is not None and number not in taken:
                self._pending_trials[number] = trial
                return number
            if number is None:
                self._tell_trial(trial, math.inf)
            else:
                self._tell_trial(trial, self.observed.get(number, math.nan))
        return self._nearest(config, taken)

    def _nearest(self, config: Configuration, taken: set[int]) -> int:
        """Return the free configuration nearest to ``config``, scaled by the parameters' ranges."""
        if self.space.is_too_large_to_enumerate:
            candidates = self.space.sample_indices(NEAREST_SAMPLE, self.rng)
        else:
            candidates = np.arange(len(self.space))
        free = np.setdiff1d(candidates, list(taken))

        codes = self.space.codes_of(free).astype(float)
        distance = np.zeros(len(free))
        for column, (name, values) in enumerate(self.space.parameters.items()):
            steps = np.abs(codes[:, column] - values.index(config[name]))
            distance += steps / max(len(values) - 1, 1)
        nearest = free[distance == distance.min()]
        return int(self.rng.choice(nearest))

    def _learn(self, new_values: dict[int, float]) -> None:
        for number, value in new_values.items():
            trial = self._pending_trials.pop(number, None)
            if trial is not None:
                self._tell_trial(trial, value)
            elif not math.isnan(value):
                # It was measured without being proposed.
                params = self._encoded(self.space[number])
                self._study.add_trial(
                    create_trial(params=params, distributions=self._distributions, value=value)
                )

    def _tell_trial(self, trial: Trial, value: float) -> None:
        """Tell the study the result of ``trial``; NaN means that it has none."""
        if math.isnan(value):
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, value)

    def _decoded(self, params: Mapping[str, Any]) -> Configuration:
        """Return the configuration of a trial's parameters."""
        config = {}
        for name, distribution in self._distributions.items():
            position = int(distribution.to_internal_repr(params[name]))
            config[name] = self.space.parameters[name][position]
        return Configuration(config)

    def _encoded(self, config: Configuration) -> dict[str, Value]:
        """Return a configuration as a trial's parameters."""
        params = {}
        for name, distribution in self._distributions.items():
            position = self.space.parameters[name].index(config.get(name, ABSENT))
            params[name] = distribution.to_external_repr(position)
        return params


class TPESearcher(OptunaSearcher):
    """Multivariate tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011)."""

    def _make_sampler(self) -> BaseSampler:
        return optuna.samplers.TPESampler(seed=self.seed, multivariate=True)

    def _distribution(self, values: Sequence[Value]) -> BaseDistribution:
        """Return choices; TPE does better with them than with ranges on tuning spaces."""
        return CategoricalDistribution(values)


class GPSearcher(OptunaSearcher):
    """Gaussian process with log expected improvement; slow, almost a second per proposal."""

    def _make_sampler(self) -> BaseSampler:
        require("torch", "gpu", "searcher 'gp'")
        return optuna.samplers.GPSampler(seed=self.seed)


class CMAESSearcher(OptunaSearcher):
    """Covariance matrix adaptation with margin, for integers (Hamano et al., GECCO 2022)."""

    def _make_sampler(self) -> BaseSampler:
        require("cmaes", "bench", "searcher 'cmaes'")
        return optuna.samplers.CmaEsSampler(seed=self.seed, with_margin=True)

    def _distribution(self, values: Sequence[Value]) -> BaseDistribution:
        """Return positions, also of strings, because the sampler does not learn choices."""
        return _positions(values)


def _positions(values: Sequence[Value]) -> BaseDistribution:
    return IntDistribution(0, len(values) - 1)
