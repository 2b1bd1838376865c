"""The tuner of one call, in three parts, and the state that all calls of a kernel share.

`CallHistory` is what is known, `CallSearch` what to measure next, `ChoiceRule` what to run. Drivers
take them in this order:

1. `ChoiceRule.stored_choice`; if it `suffices`, the call runs with it, and that is all.
2. `CallSearch.start`: the loop that says what to measure, and records it in the history.
3. `ChoiceRule.choose_best`: the best candidate is stored as the new choice.

`CallDriver` takes the steps. In `stalled.py`, it takes all of them while the call waits; for
`online.py`, one by one between calls, which carry the trials.
`inductor.py` lets torch's Inductor measure, and stores the choice with `ChoiceRule.store_choice`.
"""

import dataclasses
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from foretune.collect.power import explain_missing_meter, find_meter
from foretune.device import Device
from foretune.errors import ForetuneError, warn
from foretune.objective import ConstrainedObjective, Objective
from foretune.space import Configuration
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.store.fallible import FallibleStore
from foretune.tune.store.reader import StoreFile
from foretune.tune.store.subject import Subject
from foretune.tune.triton.call_search import CallSearch
from foretune.tune.triton.candidate_features import CandidateFeatures
from foretune.tune.triton.choice import ChoiceRule
from foretune.tune.triton.history import CallHistory
from foretune.tune.triton.options import Options
from foretune.tune.triton.prior import PriorFactory
from foretune.tune.triton.problem_key import Call


@dataclass(frozen=True, eq=False)
class CallTuner:
    """Chooses among the candidates of one call.

    The search and the rule read the history; only the search and its driver add to it.
    """

    history: CallHistory
    search: CallSearch
    rule: ChoiceRule

    @classmethod
    def for_call(
        cls,
        call: Call,
        candidates: Sequence[Configuration],
        *,
        options: Options,
        cache: MeasurementCache,
        priors: PriorFactory,
    ) -> Self:
        """Return the tuner of a call; the options' objective must be measurable."""
        features = CandidateFeatures(call)
        history = CallHistory(
            call=call,
            candidates=candidates,
            cache=cache,
            objective=ConstrainedObjective(options.parsed_objective, ()),
            check=options.check,
            features=features.of,
        )
        search = CallSearch(history, features, options=options, priors=priors)
        return cls(history, search, ChoiceRule(history, search, options))


class CallTunerFactory:
    """State shared by all calls of one decorated kernel; makes their tuners.

    Attributes:
        options: the options of the decorator.
        caches: measurements by kernel, device and versions.
        lock: held while choosing or recording, never while launching or compiling.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.caches: dict[Subject, MeasurementCache] = {}
        self.lock = threading.RLock()
        self._store = FallibleStore(options.store)
        self._per_device: dict[str, tuple[Options, PriorFactory]] = {}

    def renew_lock(self) -> None:
        """Replace the lock in a forked process, where the thread that holds it does not exist."""
        self.lock = threading.RLock()

    def cache_of(self, call: Call) -> MeasurementCache:
        """Return the measurements of a call's kernel, device and versions."""
        subject = call.subject
        if subject not in self.caches:
            self.caches[subject] = MeasurementCache(subject, self._store, shipped=self._shipped)
        return self.caches[subject]

    def make_tuner(self, call: Call, candidates: Sequence[Configuration]) -> CallTuner:
        """Return the tuner of a call."""
        device = call.device
        if device.name not in self._per_device:
            options = _with_measurable_objective(self.options, device)
            priors = PriorFactory(call.kernel, call.source, device, options)
            self._per_device[device.name] = (options, priors)
        options, priors = self._per_device[device.name]
        cache = self.cache_of(call)
        return CallTuner.for_call(call, candidates, options=options, cache=cache, priors=priors)

    @cached_property
    def _shipped(self) -> StoreFile | None:
        if self.options.shipped is None:
            return None
        try:
            return StoreFile(self.options.shipped)
        except ForetuneError as e:
            warn(f"shipped results are not used: {e}")
            return None


def _with_measurable_objective(options: Options, device: Device) -> Options:
    """Return ``options``; without a power meter for ``device``, the objective is time."""
    objective = options.parsed_objective
    if not objective.needs_power or find_meter(device.kind, device.index) is not None:
        return options
    reason = explain_missing_meter(device.kind)
    warn(f"objective {objective.value!r} needs a power meter ({reason}): minimizing time instead")
    return dataclasses.replace(options, objective=Objective.TIME)
