"""SMAC3 (Lindauer et al., JMLR 23, 2022), run by its own code."""

import logging
import math
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from foretune.search.searcher import Searcher
from foretune.space import Configuration
from foretune.support.lazy import require

PLANNED_TRIALS = 100
"""Number of evaluations it plans for; a quarter is its initial design."""
FAILURE_FACTOR = 2.0
"""A failure counts as this multiple of the slowest success, because SMAC's forest takes no
infinity."""
MAX_RETRIES = 20
"""Number of proposals outside the space before a random one is taken."""


class SMACSearcher(Searcher):
    """Random forest with log expected improvement: SMAC's facade for hyperparameters.

    Numbers are passed by position, strings as categories. SMAC knows no restrictions: a proposal
    outside the space counts as a crash and is free. With its defaults, it learns after every eight
    evaluations and fills up eight proposals at random. After `MAX_RETRIES` invalid proposals, one
    is random.
    """

    def _prepare(self) -> None:
        require("smac", "smac", "searcher 'smac'")
        from ConfigSpace import CategoricalHyperparameter, ConfigurationSpace, Integer
        from smac import HyperparameterOptimizationFacade, Scenario

        logging.getLogger("smac").setLevel(logging.ERROR)
        self._parameters = self.space.parameters
        self._config_space = ConfigurationSpace(seed=self.seed)
        for name, values in self._parameters.items():
            words = len(values) == 1 or any(isinstance(v, str) for v in values)
            last = len(values) - 1
            self._config_space.add(
                CategoricalHyperparameter(name, [*range(len(values))])
                if words
                else Integer(name, (0, last))
            )
        folder = tempfile.mkdtemp()  # it writes its settings there
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        scenario = Scenario(
            self._config_space,
            deterministic=True,
            n_trials=PLANNED_TRIALS,
            seed=self.seed,
            output_directory=Path(folder),
        )
        self._facade = HyperparameterOptimizationFacade(
            scenario, _never_called, logging_level=False, overwrite=True
        )
        self._pending_trials: dict[int, Any] = {}
        """Trials without a result, by configuration number."""

    def _propose(self, n: int) -> list[int]:
        numbers: list[int] = []
        while len(numbers) < n:
            taken = self.proposed.union(numbers)
            numbers.append(self._ask(taken))
        return numbers

    def _ask(self, taken: set[int]) -> int:
        from smac.main.exceptions import ConfigurationSpaceExhaustedException

        for _ in range(MAX_RETRIES):
            try:
                trial = self._facade.ask()
            except ConfigurationSpaceExhaustedException:
                break
            number = self.space.index_or_none(self._decoded(trial.config))
            if number is not None and number not in taken:
                self._pending_trials[number] = trial
                return number
            self._tell_trial(
                trial, math.inf if number is None else self.observed.get(number, math.inf)
            )
        others = self.random_indices(len(taken - self.proposed) + 1)
        return next(i for i in others if i not in taken)

    def _learn(self, new_values: dict[int, float]) -> None:
        from ConfigSpace import Configuration as Known
        from smac.runhistory import TrialInfo

        for number, value in new_values.items():
            trial = self._pending_trials.pop(number, None)
            if trial is None:
                config = self.space[number]
                positions = {n: vs.index(config[n]) for n, vs in self._parameters.items()}
                trial = TrialInfo(Known(self._config_space, values=positions), seed=0)
            self._tell_trial(trial, value)

    def _tell_trial(self, trial: Any, value: float) -> None:
        """Tell SMAC the result of a trial."""
        from smac.runhistory import StatusType, TrialValue

        ran = [v for v in self.observed.values() if math.isfinite(v)]
        failed = not math.isfinite(value)
        cost = FAILURE_FACTOR * max(ran, default=1.0) if failed else value
        status = StatusType.CRASHED if failed else StatusType.SUCCESS
        self._facade.tell(trial, TrialValue(cost=cost, status=status))

    def _decoded(self, config: Any) -> Configuration:
        positions = dict(config)
        return Configuration({n: vs[int(positions[n])] for n, vs in self._parameters.items()})


def _never_called(config: Any, seed: int = 0) -> float:
    """Placeholder for the function that SMAC would call; it is not used."""
    raise NotImplementedError
