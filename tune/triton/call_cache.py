"""The measurement cache of a decorated kernel, in the terms of one call."""

import hashlib
from collections.abc import Sequence
from functools import cached_property, lru_cache

from foretune.measurement import Measurement
from foretune.objective import ConstrainedObjective
from foretune.space import Configuration
from foretune.tune.store.cache import LEAST_TIME, FallibleStore, MeasurementCache, open_shipped
from foretune.tune.store.reader import StoreReader
from foretune.tune.store.subject import Choice, Subject
from foretune.tune.triton.options import Options
from foretune.tune.triton.problem_key import Call


class CallCaches:
    """One `MeasurementCache` per device and version that a decorated kernel is called with."""

    def __init__(self, options: Options) -> None:
        self._store = FallibleStore(options.store)
        self._shipped_path = options.shipped
        self._caches: dict[Subject, MeasurementCache] = {}

    def cache_of(self, call: Call) -> MeasurementCache:
        """Return the cache of a call's kernel and device."""
        subject = call.subject
        if subject not in self._caches:
            self._caches[subject] = MeasurementCache(subject, self._store, shipped=self._shipped)
        return self._caches[subject]

    @cached_property
    def _shipped(self) -> StoreReader | None:
        return open_shipped(self._shipped_path)


def known_runs(cache: MeasurementCache, call: Call) -> list[Measurement]:
    """Return the runs of the call's kernel and device, of all problems."""
    known = cache.known(call.problem)
    return [*cache.known_for_other_problems(call.problem), *known]


def find_choice(
    cache: MeasurementCache, call: Call, candidates: Sequence[Configuration], options: Options
) -> Choice | None:
    """Return the choice among these candidates, or among others if it is one of these."""
    objective = ConstrainedObjective(options.parsed_objective, ())
    listed = candidates_id(candidates, options)
    found = cache.choice(call.problem, objective, candidates=listed, among=candidates)
    if found is None and objective == LEAST_TIME:
        found = cache.choice(call.problem, among=candidates)
    return found


def settle(
    cache: MeasurementCache,
    call: Call,
    candidates: Sequence[Configuration],
    options: Options,
    choice: Choice,
    replacing: Choice | None = None,
) -> Choice:
    """Settle on a choice, or return what another process settled on meanwhile."""
    objective = ConstrainedObjective(options.parsed_objective, ())
    listed = candidates_id(candidates, options)
    return cache.choose(call.problem, objective, choice, replacing, candidates=listed)


def candidates_id(candidates: Sequence[Configuration], options: Options) -> str:
    """Return what identifies the candidates, and whether their results are compared."""
    return _digest(tuple(candidates), str(options.check))


@lru_cache(maxsize=64)
def _digest(candidates: tuple[Configuration, ...], check: str) -> str:
    """Return a hash; cached, because most calls of a kernel have the same candidates."""
    parts = [*sorted(c.id for c in candidates), check]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
