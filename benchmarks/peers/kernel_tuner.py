"""Kernel Tuner's search strategies (van Werkhoven, FGCS 90, 2019), run by its own code.

A strategy is a function that calls for measurements until its budget is spent. `CallbackToAskTell`
turns it into a searcher.
"""

import contextlib
import math
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from foretune.search.searcher import Searcher
from foretune.space import SearchSpace
from foretune.support.lazy import require
from peers.pulling import CallbackToAskTell

MIN_SPACE_SIZE = 100
"""Minimum size of a space for a strategy; smaller spaces are searched at random."""
MAX_FEVALS = 200
"""Number of evaluations a strategy plans for; annealing schedules depend on it."""
MAX_REVISITS = 20_000
"""Number of repeated requests in a row after which a strategy has ended."""

ILLEGAL = -1
"""Number of a configuration outside the space; requests for it are free."""


class KernelTunerSearcher(Searcher):
    """One strategy of Kernel Tuner with its own defaults, named by a subclass.

    Repeated requests are free. Random configurations fill up batches, and follow when the strategy
    has ended, after `MAX_FEVALS` evaluations or earlier.
    """

    strategy: ClassVar[str]
    """Its name in Kernel Tuner."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Options that differ from its defaults."""
    failure: ClassVar[float] = sys.float_info.max
    """The value that it takes for a failure."""

    def _prepare(self) -> None:
        require("kernel_tuner", "bench", f"strategy {self.strategy!r}")
        self._strategy_run: CallbackToAskTell | None = None
        if len(self.space) >= MIN_SPACE_SIZE:
            run = _Strategy(self.strategy, self._options(), self.failure, self.space)
            self._strategy_run = CallbackToAskTell(run.tune, self.seed)
            weakref.finalize(self, self._strategy_run.close).atexit = False

    def _options(self) -> dict[str, Any]:
        return {"max_fevals": min(MAX_FEVALS, len(self.space)), **self.options}

    def _propose(self, n: int) -> list[int]:
        wanted = self._strategy_run.pending_requests(self.observed) if self._strategy_run else []
        chosen = [i for i in wanted if i not in self.proposed][:n]
        if len(chosen) < n:
            others = [i for i in self.random_indices(n) if i not in chosen]
            chosen += others[: n - len(chosen)]
        return chosen


class GeneticAlgorithm(KernelTunerSearcher):
    """A population of 26 with crossover, mutation and repair."""

    strategy = "genetic_algorithm"

    def _options(self) -> dict[str, Any]:
        # Its populations shrink when it has made as many children as there are configurations,
        # and it never ends with one of a single parent.
        return {**super()._options(), "maxiter": max(1, min(90, len(self.space) // 26 - 1))}


class DifferentialEvolution(KernelTunerSearcher):
    """Differences of two members of a population move a third."""

    strategy = "diff_evo"


class ParticleSwarm(KernelTunerSearcher):
    """Particles that move towards their own best and the global best."""

    strategy = "pso"


class SimulatedAnnealing(KernelTunerSearcher):
    """A walk over neighbors that accepts worse ones ever less often."""

    strategy = "simulated_annealing"


class DualAnnealing(KernelTunerSearcher):
    """SciPy's generalized annealing with a local search (COBYLA)."""

    strategy = "dual_annealing"
    failure = math.inf


class AdaptiveTabuGreyWolf(KernelTunerSearcher):
    """Gray wolves with a tabu list: the best of Kernel Tuner's generated strategies."""

    strategy = "adaptive_tabu_greywolf"


class HybridVNDX(KernelTunerSearcher):
    """Variable neighborhood descent with crossover of an elite."""

    strategy = "hybrid_vndx"


class BayesOpt(KernelTunerSearcher):
    """Gaussian process (Willemsen, van Nieuwpoort and van Werkhoven, PMBS 2021)."""

    strategy = "bayes_opt"
    # Its default, "multi-ultrafast", is this where a measurement takes seconds; where it does not,
    # how often the model is updated depends on the clock.
    options: ClassVar[Mapping[str, Any]] = {"method": "multi-fast"}
    failure = 1e20


class _Strategy:
    """The state that Kernel Tuner's `tune_kernel` prepares for a strategy, and the call."""

    def __init__(
        self, name: str, options: Mapping[str, Any], failure: float, space: SearchSpace
    ) -> None:
        from kernel_tuner.interface import strategy_map

        self._tune = strategy_map[name].tune  # imported before the seed counts: imports may draw
        self._options = dict(options)
        self._failure = failure
        self._space = space

    def tune(self, values: Callable[[list[int]], list[float]]) -> None:
        """Run the strategy to its end, with its own search space, which caches neighbors."""
        from kernel_tuner.interface import Options
        from kernel_tuner.searchspace import Searchspace
        from kernel_tuner.util import StopCriterionReached, TuningBudget

        # Positions stand for texts and booleans, which have no distances.
        named = {n: _numeric_values(vs) for n, vs in self._space.parameters.items()}
        columns = [np.array(vs)[self._space.codes[:, i]] for i, vs in enumerate(named.values())]
        configs = list(zip(*(c.tolist() for c in columns), strict=True))
        cache = {i: dict(zip(named, config, strict=True)) for i, config in enumerate(configs)}
        searchspace = Searchspace(
            None, None, None, from_cache={"tune_params": named, "cache": cache}
        )
        options = Options(
            tune_params=named,
            strategy_options=Options(self._options),
            objective=["time"],
            objective_higher_is_better=[False],
            budget=TuningBudget(max_fevals=self._options["max_fevals"]),
            restrictions=[],
            verbose=False,
        )
        numbers = {config: i for i, config in enumerate(configs)}
        runner = _runner(numbers, values, self._failure)
        with contextlib.suppress(StopCriterionReached):
            self._tune(searchspace, runner, options)


def _numeric_values(values: Sequence[Any]) -> list[Any]:
    plain = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    return list(values) if plain else list(range(len(values)))


def _runner(
    numbers: Mapping[tuple[Any, ...], int],
    values: Callable[[list[int]], list[float]],
    failure: float,
) -> Any:
    """Return a Kernel Tuner runner that gets measurements from ``values``."""
    from kernel_tuner.runners.runner import Runner
    from kernel_tuner.util import StopCriterionReached

    known = {ILLEGAL: math.inf}
    device = SimpleNamespace(max_threads=1_000_000_000, name="Foretune")

    class AskTellRunner(Runner):
        dev = device
        revisits = 0

        def get_device_info(self) -> Any:
            return device

        def get_environment(self, tuning_options: Any) -> dict[str, Any]:
            return {}

        def run(self, parameter_space: Any, tuning_options: Any) -> list[dict[str, Any] | None]:
            configs = [tuple(config) for config in parameter_space]
            affordable: list[int | None] = []
            fresh: dict[int, None] = {}
            for config in configs:
                number = None if tuning_options.budget.is_done() else numbers.get(config, ILLEGAL)
                if number is not None and number not in known and number not in fresh:
                    fresh[number] = None
                    tuning_options.budget.add_evaluations(1)
                affordable.append(number)
            if fresh:
                known.update(zip(fresh, values(list(fresh)), strict=True))
                self.revisits = 0
            self.revisits += len(configs)
            if self.revisits > MAX_REVISITS:
                raise StopCriterionReached("nothing new")
            names = list(tuning_options.tune_params)
            return [
                None if number is None else result(dict(zip(names, config, strict=True)), number)
                for config, number in zip(configs, affordable, strict=True)
            ]

    def result(config: dict[str, Any], number: int) -> dict[str, Any]:
        # No "__error__": release 1.5.0 makes every failure `sys.float_info.max`, also for
        # strategies that take another value for one.
        return {**config, "time": known[number] if np.isfinite(known[number]) else failure}

    return AskTellRunner()
