"""Gives a predictor to any Optuna sampler by alternating with the surrogate sampler."""

from collections.abc import Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from foretune.search.guided import GUIDED_MEASUREMENTS, TURN_PERIOD
from foretune.search.optuna.sampler import SurrogateSampler


class GuidedSampler(BaseSampler):
    """Alternates between a guide with a predictor and another sampler.

    The guide starts with the best predictions. Then every third trial comes from the other sampler.
    Each learns from all trials. `foretune.search.guided` does the same for searchers.

    Example::

        guide = SurrogateSampler(predictor="models:/foretune-matmul@champion", problem=problem)
        study = optuna.create_study(sampler=GuidedSampler(TPESampler(), guide))

    Args:
        sampler: any Optuna sampler.
        guide: a sampler with a predictor.
    """

    def __init__(self, sampler: BaseSampler, guide: SurrogateSampler) -> None:
        self._sampler, self._guide = sampler, guide

    def reseed_rng(self) -> None:
        """Reseed both samplers."""
        self._sampler.reseed_rng()
        self._guide.reseed_rng()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the search space of the sampler whose turn it is."""
        return self._sampler_for(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return values for the parameters of ``search_space``."""
        return self._sampler_for(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a value for one parameter."""
        return self._sampler_for(trial).sample_independent(
            study, trial, param_name, param_distribution
        )

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Call both samplers' `before_trial`."""
        self._guide.before_trial(study, trial)
        self._sampler.before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Call both samplers' `after_trial`."""
        self._guide.after_trial(study, trial, state, values)
        self._sampler.after_trial(study, trial, state, values)

    def _sampler_for(self, trial: FrozenTrial) -> BaseSampler:
        is_other_turn = trial.number >= GUIDED_MEASUREMENTS and trial.number % TURN_PERIOD == 0
        return self._sampler if is_other_turn else self._guide
