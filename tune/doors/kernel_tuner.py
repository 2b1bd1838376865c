"""Foretune's search as a strategy of Kernel Tuner."""

import sys
from typing import Any

from foretune.errors import UsageError
from foretune.search.factory import SearcherKind, make_searcher
from foretune.space import SearchSpace
from foretune.tune.doors.knobs import internals_of


class KernelTunerStrategy:
    """A strategy for Kernel Tuner: ``tune_kernel(…, strategy=KernelTunerStrategy())``.

    Kernel Tuner compiles, measures and caches. Its options ``max_fevals``, ``time_limit`` and
    ``x0`` (measured first), its ``seed`` and a single objective in either direction apply.

    Args:
        searcher: as for `foretune.make_searcher`.
    """

    def __init__(self, searcher: SearcherKind = "surrogate") -> None:
        self.searcher = searcher

    def tune(self, searchspace: Any, runner: Any, tuning_options: Any) -> list[dict[str, Any]]:
        """Search until Kernel Tuner's budget is spent; return its results. Kernel Tuner calls this.

        Raises UsageError if there are several objectives, or Kernel Tuner is of another version.
        """
        with internals_of("Kernel Tuner 1.5.0"):
            from kernel_tuner.strategies.common import CostFunc
            from kernel_tuner.util import StopCriterionReached

            measure = CostFunc(searchspace, tuning_options, runner, snap=False)
            results = measure.results
            objectives = len(tuning_options.objective)
            x0 = tuning_options.strategy_options.get("x0")
            seed = tuning_options.seed or 0
        if objectives > 1:
            raise UsageError("KernelTunerStrategy minimizes one objective: give objective='time'")
        names = list(searchspace.tune_params)
        space = SearchSpace.from_configs(dict(zip(names, c, strict=True)) for c in searchspace.list)
        searcher = make_searcher(self.searcher, space, seed=seed)

        # One configuration after the other, x0 first, until the space or the budget ends.
        proposed = [dict(zip(names, x0, strict=True))] if x0 else searcher.ask()
        try:
            while proposed:
                config = proposed[0]
                cost = measure([config[name] for name in names])
                searcher.tell_values({space.index(config): _value(cost)})
                proposed = searcher.ask()
        except StopCriterionReached:
            pass
        return results


def _value(cost: float) -> float:
    """Return the positive value that a searcher minimizes; infinite for a failure."""
    if cost == sys.float_info.max:
        return float("inf")
    return cost if cost > 0 else -1 / cost  # Kernel Tuner negates what is maximized
