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
    """Decides whether a stored choice suffices, and stores a new one.

    A driver reads `stored_choice` and asks whether it `suffices`. If it does not, the driver
    searches, and calls `choose_best` with the choice that it read.
    """

    def __init__(self, history: CallHistory, search: CallSearch, options: Options) -> None:
        self._history = history
        self._search = search
        self._options = options

    def stored_choice(self) -> Choice | None:
        """Return the stored choice if it is one of these candidates."""
        cache = self._history.cache
        problem = self._history.call.problem
        objective = self._history.objective
        candidates = self._history.candidates
        choice = cache.choice(problem, objective, candidates=self._candidates_id, among=candidates)
        # A choice that another tuner made, such as one of vLLM's files, names no candidates: it is
        # stored for the whole space, and such files are tuned for time only.
        if choice is None and objective == LEAST_TIME:
            choice = cache.choice(problem, among=candidates)
        return choice

    def suffices(self, stored: Choice) -> bool:
        """Whether a stored choice meets the options, and no measurement refutes it."""
        if self.is_wrong(stored):
            return False

        # Every candidate was measured: nothing is left to do.
        if stored.how == "all":
            return True

        # The expected regret is small enough, unless every candidate must be measured.
        is_good_enough = stored.how == "verified" or stored.regret <= self._options.regret
        if is_good_enough and not self._options.measures_all:
            return True

        # The budget is spent, so another search would measure nothing.
        return self._options.is_spent(stored.measured)

    def is_wrong(self, stored: Choice) -> bool:
        """Whether a stored choice failed later, or others were measured to be faster."""
        return self._is_refuted(stored) or self._has_failed(stored)

    def choose_best(self, *, replacing: Choice | None) -> Choice:
        """Choose the best candidate and store the choice; see `store_choice`."""
        # How it was chosen: after measuring all candidates, some, or none.
        n_unmeasured = len(self._history.unmeasured())
        n_measured = len(self._history.candidates) - n_unmeasured
        method: ChoiceMethod
        if not n_unmeasured:
            method = "all"
        elif n_measured:
            method = "measured"
        else:
            method = "predicted"

        regret = 0.0 if method == "all" else self.promised_regret()
        choice = Choice(self._search.best, measured=n_measured, regret=regret, how=method)
        return self.store_choice(choice, replacing=replacing)

    def store_choice(self, choice: Choice, *, replacing: Choice | None) -> Choice:
        """Store a choice, and return it.

        If another process has stored one since ``replacing`` was read, return that one instead.
        ``replacing`` is None if there was none.
        """
        history = self._history
        return history.cache.choose(
            history.call.problem,
            history.objective,
            choice,
            replacing,
            candidates=self._candidates_id,
        )

    def promised_regret(self) -> float:
        """Return the expected regret to store with a choice; NaN if unknown."""
        regret = float(self._search.updated_searcher().search_posterior.expected_regret)
        return regret if math.isfinite(regret) else math.nan

    @property
    def _candidates_id(self) -> str:
        """Identifies the candidates, and whether their results are compared."""
        return _digest(tuple(self._history.candidates), str(self._options.check))

    def _has_failed(self, choice: Choice) -> bool:
        """Whether the chosen configuration failed on this problem, compared or not."""
        runs = self._history.cache.known(self._history.call.problem)
        return any(m.config == choice.config and not m.ok for m in runs)

    def _is_refuted(self, choice: Choice) -> bool:
        """Whether later measurements show a larger regret than the choice promised.

        Never a verified one: its times were compared in interleaved rounds.
        """
        if choice.how == "verified":
            return False

        # Unmetered runs have no objective.
        objectives = {m.config: self._history.value_of(m) for m in self._history.measured()}
        known = {config: value for config, value in objectives.items() if not math.isnan(value)}
        if choice.config not in known:
            return False

        # The regret that was promised, or the one that the user accepts if that is larger.
        promised = choice.regret if math.isfinite(choice.regret) else 0.0
        allowed = max(promised, self._options.regret)
        return known[choice.config] > (1.0 + allowed) * min(known.values())


@lru_cache(maxsize=64)
def _digest(candidates: tuple[Configuration, ...], check: str) -> str:
    """Return a hash; cached, because most calls of a kernel have the same candidates."""
    parts = [*sorted(config.id for config in candidates), check]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
