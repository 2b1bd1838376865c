"""Replays the decorator's own objects (prior, searcher, stopping rule) on recorded problems."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from recorded_calls import Recorded

from foretune.measurement import Measurement
from foretune.search.stopping import Stopping
from foretune.space import Configuration
from foretune.tune.triton.call_tuner import CallTuner, CallTunerFactory
from foretune.tune.triton.launch_order import LaunchOrders
from foretune.tune.triton.options import Options
from foretune.tune.triton.prior import PriorFactory

BUDGETS = (0, 1, 4, 8)
"""Numbers of measurements after which a choice is noted, besides "auto"."""

Chosen = tuple[Configuration, int, float]
"""A configuration, the measurements it took, and the loss that was promised."""


@dataclass
class Kept:
    """What one way of choosing kept, problem by problem."""

    share: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    promised: list[float] = field(default_factory=list)

    def note(self, share: float, measured: float, promised: float = float("nan")) -> None:
        """Take in one problem."""
        self.share.append(share)
        self.measured.append(measured)
        self.promised.append(promised)

    def summary(self) -> dict[str, float]:
        """Return what is printed; losses relative to the best."""
        share = np.array(self.share)
        found = {
            "kept_mean": share.mean(),
            "kept_median": np.median(share),
            "kept_p10": np.quantile(share, 0.1),
            "kept_p5": np.quantile(share, 0.05),
            "kept_worst": share.min(),
            "measured": np.mean(self.measured),
            "promised": np.mean(self.promised),
            "lost": np.mean(1.0 / np.maximum(share, 1e-3) - 1.0),
            "problems": len(share),
        }
        return {n: round(float(v), 4) for n, v in found.items() if v == v}


class Replayed:
    """The decorator of one kernel, its history in memory, its launches from a recording."""

    def __init__(self, order: LaunchOrders | None, runs: Iterable[Measurement] = ()) -> None:
        self._order = order
        self._priors: PriorFactory | None = None
        self.runs = list(runs)

    def copy(self) -> "Replayed":
        """Return one that knows as much, and learns on its own."""
        other = Replayed(self._order, self.runs)
        other._priors = self._priors
        return other

    def choose(self, problem: Recorded, budgets: Sequence[int] = BUDGETS) -> dict[str, Chosen]:
        """Return configuration, measurements and promised loss by budget; "auto" is remembered."""
        call = problem.call
        options = Options(store=False)
        cache = CallTunerFactory(options).cache_of(call)
        cache.append(*self.runs)
        self._priors = self._priors or PriorFactory(
            call.kernel, call.source, call.device, options, self._order
        )
        spending = Options(store=False, budget=len(problem.configs))
        tuner = CallTuner.for_call(
            call, problem.configs, options=spending, cache=cache, priors=self._priors
        )
        automatic = Stopping(None, options.regret)
        found: dict[str, Chosen] = {}
        search = tuner.search
        while True:
            measured = tuner.history.new_count
            now = search.best, measured, self._promised(tuner, problem)
            if measured in budgets:
                found[str(measured)] = now

            # As in a search, the rule is asked before the next configuration is proposed: what is
            # proposed no longer counts as an expected gain.
            if "auto" not in found and automatic.reason(search, measured) is not None:
                found["auto"] = now
                self.runs = tuner.history.all_measurements
            if "auto" in found and measured >= max(budgets, default=0):
                break

            proposed = search.ask()
            if not proposed:
                break
            search.tell([problem.run(config) for config in proposed])
        if "auto" not in found:
            found["auto"], self.runs = now, tuner.history.all_measurements
        return found | {str(b): now for b in budgets if str(b) not in found}

    @staticmethod
    def _promised(tuner: CallTuner, problem: Recorded) -> float:
        complete = tuner.history.new_count == len(problem.configs)
        if complete:
            return 0.0
        posterior = tuner.search.updated_searcher().search_posterior
        return min(posterior.expected_regret, 9.0)
