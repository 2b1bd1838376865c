"""Optuna's multivariate tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011)."""

import math

from foretune.search.searcher import Searcher

TRIES = 20
"""Proposals outside the space or already known are answered and asked again this many times."""


class TPESearcher(Searcher):
    """Asks an Optuna study; restrictions are kept by rejecting what breaks them."""

    def _prepare(self) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._distributions = {
            name: optuna.distributions.CategoricalDistribution(values)
            for name, values in self.space.parameters.items()
        }
        sampler = optuna.samplers.TPESampler(seed=self.seed, multivariate=True)
        self._study = optuna.create_study(sampler=sampler)

    def _propose(self, n: int) -> list[int]:
        import optuna

        numbers: list[int] = []
        for _ in range(n):
            for _ in range(TRIES):
                trial = self._study.ask(self._distributions)  # type: ignore[arg-type]
                self._study.tell(trial, state=optuna.trial.TrialState.FAIL)  # `_learn` adds results
                number = self.space.number(trial.params)
                if number is not None and number not in self.proposed and number not in numbers:
                    numbers.append(number)
                    break
            else:
                numbers += [i for i in self.random_numbers(n) if i not in numbers][:1]
        return numbers

    def _learn(self, news: dict[int, float]) -> None:
        import optuna

        for number, value in news.items():
            finite = math.isfinite(value)
            self._study.add_trial(
                optuna.trial.create_trial(
                    params=dict(self.space[number]),
                    distributions=self._distributions,  # type: ignore[arg-type]
                    value=value if finite else None,
                    state=optuna.trial.TrialState.COMPLETE
                    if finite
                    else optuna.trial.TrialState.FAIL,
                )
            )
