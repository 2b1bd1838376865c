"""What is known of one call: measurements of its candidates, and who measures which.

A failure tells nothing about a configuration if nothing else runs either: the call may be at fault.
Failures are therefore held back until one candidate has run.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from foretune.measurement import Measurement, Status
from foretune.objective import ConstrainedObjective
from foretune.space import Configuration, ListedSpace
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.triton.problem_key import Call


class CallHistory:
    """The measurements of one call's candidates, by this process and others.

    Args:
        call: the call.
        candidates: its configurations.
        cache: the measurements of the kernel, shared by all its calls.
        objective: the quantity to minimize.
        check: maximum relative error of an output; None if outputs are not compared.
        features: returns the features of a candidate to store with its measurement.

    Attributes:
        new_count: number of measurements by this process in this search.
        claimed_by_others: candidates of the search that other processes are measuring.
        changes: how often measurements were added or read again.
    """

    def __init__(
        self,
        *,
        call: Call,
        candidates: Sequence[Configuration],
        cache: MeasurementCache,
        objective: ConstrainedObjective,
        check: float | None,
        features: Callable[[Configuration], Mapping[str, float]],
    ) -> None:
        self.call = call
        self.space = ListedSpace(candidates)
        self.candidates = list(self.space)
        self.cache = cache
        self.objective = objective
        self.new_count = 0
        self.claimed_by_others: list[Configuration] = []
        self.changes = 0
        self._check = check
        self._features = features
        self._held_back: list[Measurement] = []

    @property
    def needs_power(self) -> bool:
        """Whether the objective needs a power meter."""
        return self.objective.objective.needs_power

    def value_of(self, measurement: Measurement) -> float:
        """Return the objective: infinite for a failure, NaN if it was not metered."""
        return self.objective.value_of(measurement)

    @cached_property
    def runs(self) -> list[Measurement]:
        """All measurements of the kernel on this device, including failures held back."""
        of_this_problem = self.cache.known(self.call.problem)
        of_other_problems = self.cache.known_for_other_problems(self.call.problem)
        return [*of_other_problems, *of_this_problem, *self._held_back]

    def is_candidate(self, measurement: Measurement) -> bool:
        """Whether a run is of a candidate, with its output compared if that is required."""
        if measurement.problem != self.call.problem or measurement.config not in self.space:
            return False
        if self._check is None or not measurement.ok:
            return True
        return measurement.relative_error <= self._check

    def measured(self) -> list[Measurement]:
        """Return all known measurements of the candidates, in the order of the candidates."""
        found = {m.config: m for m in self.runs if self.is_candidate(m)}
        return [found[config] for config in self.candidates if config in found]

    def unmeasured(self) -> list[Configuration]:
        """Return the candidates whose objective is unknown, in their order."""
        known = {m.config for m in self.measured() if not math.isnan(self.value_of(m))}
        return [config for config in self.candidates if config not in known]

    def was_measured(self, config: Configuration) -> bool:
        """Whether a candidate has a measurement, even one that does not count."""
        problem = self.call.problem
        return any(m.problem == problem and m.config == config for m in self.runs)

    def best_measured(self) -> Configuration | None:
        """Return the best candidate that was measured; None if none ran."""
        ran = [m for m in self.measured() if m.ok and not math.isnan(self.value_of(m))]
        if not ran:
            return None
        return min(ran, key=self.value_of).config

    @property
    def all_failed(self) -> bool:
        """Whether every candidate was measured and failed."""
        failed = [m for m in self.measured() if math.isinf(self.value_of(m))]
        return len(failed) == len(self.candidates)

    def fallback_configuration(self) -> Configuration:
        """Return the first candidate that did not crash, else the first."""
        crashed = {m.config for m in self.measured() if m.status is Status.RUNTIME_ERROR}
        for config in self.candidates:
            if config not in crashed:
                return config
        return self.candidates[0]

    def add(self, measurements: Sequence[Measurement]) -> None:
        """Record measurements of this process; hold failures back until a candidate has run."""
        self.new_count += len(measurements)
        self._held_back += [
            dataclasses.replace(m, static={**m.static, **self._features(m.config)})
            for m in measurements
        ]
        self._read_again()
        if any(m.ok for m in self.measured()):
            self.record_pending()
            return

        # Nothing is recorded, so other processes must be free to try these candidates.
        for m in measurements:
            self.cache.release(self.call.problem, m.config)

    def add_reported(self, measurements: Sequence[Measurement]) -> None:
        """Record measurements of the search; those of other processes are recorded already."""
        own = [m for m in measurements if m.config not in self.claimed_by_others]
        self.forget_claims([m.config for m in measurements])
        self.add(own)

    def record_pending(self) -> None:
        """Record the failures that were held back."""
        self._record(self._held_back)
        self._held_back = []

    def record_crashes(self) -> None:
        """Record candidates that crashed two other processes as failed."""
        known = {m.config for m in self.measured()}
        for config in self.cache.crashed_configurations(self.call.problem):
            if config in self.space and config not in known:
                reason = "two processes died while measuring it"
                self._record([self.call.failure(config, Status.RUNTIME_ERROR, reason)])

    def try_claim(self, config: Configuration, *, remeasure: bool) -> bool:
        """Claim a candidate; if another process has it, return False and expect its result.

        With ``remeasure``, a candidate that is already measured can be claimed, too.
        """
        claimed = self.cache.try_claim(self.call.problem, config, remeasure=remeasure)
        self.forget_claims([config])
        if not claimed:
            self.claimed_by_others.append(config)
        return claimed

    def forget_claims(self, configs: Sequence[Configuration]) -> None:
        """Expect no results of these candidates from other processes any more."""
        self.claimed_by_others = [c for c in self.claimed_by_others if c not in configs]

    def results_of_others(self) -> list[Measurement]:
        """Return new measurements that other processes made of `claimed_by_others`."""
        self._read_again()
        found = [m for m in self.measured() if m.config in self.claimed_by_others]
        return [m for m in found if not math.isnan(self.value_of(m))]

    def _record(self, measurements: Sequence[Measurement]) -> None:
        self.cache.append(*measurements)
        self._read_again()

    def _read_again(self) -> None:
        """Let `runs` be read again at its next use."""
        self.__dict__.pop("runs", None)
        self.changes += 1
