"""Which candidate a call runs with: the stored choice if it suffices, else the best one found."""

import hashlib
import math
from functools import lru_cache

from foretune.space import Configuration
from foretune.tune.store.cache import LEAST_TIME
from foretune.tune.store.subject import Choice, ChoiceMethod
from foretune.tune.triton.call_search import CallSearch
from foretune.tune.triton.history import CallHistory
from foretune.tune.triton.options import Options


class ChoiceRule:
    """Decides whether a stored choice suffices, and stores a new one."""

    def __init__(self, history: CallHistory, search: CallSearch, options: Options) -> None:
        self._history = history
        self._search = search
        self._options = options
        self._previous_choice: Choice | None = None

    def sufficient_choice(self) -> Choice | None:
        """Return the stored choice if it meets the options and no measurement refutes it."""
        choice = self.stored_choice()
        self._previous_choice = choice
        if choice is None or self._is_refuted(choice) or self._has_failed(choice):
            return None

        # Every candidate was measured: nothing is left to do.
        if choice.how == "all":
            return choice

        # The expected regret is small enough, unless every candidate must be measured.
        is_sure = choice.how == "verified" or choice.regret <= self._options.regret
        if is_sure and not self._options.measures_all:
            return choice

        # The budget is spent, so another search would measure nothing.
        if self._options.is_spent(choice.measured):
            return choice
        return None

    def stored_choice(self) -> Choice | None:
        """Return the stored choice among these candidates, also if it was made among others."""
        cache = self._history.cache
        problem = self._history.call.problem
        objective = self._history.objective
        candidates = self._history.candidates
        choice = cache.choice(problem, objective, candidates=self._id, among=candidates)
        if choice is None and objective == LEAST_TIME:
            choice = cache.choice(problem, among=candidates)
        return choice

    def choose(self) -> Choice:
        """Choose the best candidate; return another process's choice if it was stored first."""
        unmeasured = len(self._history.unmeasured())
        measured = len(self._history.candidates) - unmeasured
        method: ChoiceMethod
        if not unmeasured:
            method = "all"
        elif measured:
            method = "measured"
        else:
            method = "predicted"
        regret = 0.0 if method == "all" else self.promised_regret()
        return self.settle(Choice(self._search.best, measured, regret, method))

    def settle(self, choice: Choice) -> Choice:
        """Store a choice, or return one that another process stored in the meantime."""
        history = self._history
        return history.cache.choose(
            history.call.problem,
            history.objective,
            choice,
            self._previous_choice,
            candidates=self._id,
        )

    def promised_regret(self) -> float:
        """Return the expected regret to store with a choice; NaN if unknown."""
        regret = float(self._search.searcher.search_posterior.expected_regret)
        return regret if math.isfinite(regret) else math.nan

    @property
    def _id(self) -> str:
        """Identifies the candidates, and whether their results are compared."""
        return _digest(tuple(self._history.candidates), str(self._options.check))

    def _has_failed(self, choice: Choice) -> bool:
        runs = self._history.cache.known(self._history.call.problem)
        return any(m.config == choice.config and not m.ok for m in runs)

    def _is_refuted(self, choice: Choice) -> bool:
        """Whether later measurements show a larger regret than the choice promised.

        Never a verified one: its times were compared in interleaved rounds.
        """
        if choice.how == "verified":
            return False
        values = {m.config: self._history.value_of(m) for m in self._history.measured()}
        promised = choice.regret if math.isfinite(choice.regret) else 0.0
        allowed = max(promised, self._options.regret)
        limit = (1.0 + allowed) * min(values.values(), default=math.nan)
        return values.get(choice.config, math.nan) > limit


@lru_cache(maxsize=64)
def _digest(candidates: tuple[Configuration, ...], check: str) -> str:
    """Return a hash; cached, because most calls of a kernel have the same candidates."""
    parts = [*sorted(config.id for config in candidates), check]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
