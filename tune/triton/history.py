"""What is known of one call: measurements of its candidates, and who measures which.

A failure tells nothing about a configuration if nothing else runs either: the call may be at fault.
Until one candidate has run, measurements are therefore held back: this process uses them, but they
are not recorded in the store.
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
        version: rises whenever `all_measurements` may have changed.
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
        self.version = 0
        self._check = check
        self._features = features
        self._pending: list[Measurement] = []  # not recorded yet

    @property
    def needs_power(self) -> bool:
        """Whether the objective needs a power meter."""
        return self.objective.objective.needs_power

    def value_of(self, measurement: Measurement) -> float:
        """Return the objective: infinite for a failure, NaN if it was not metered."""
        return self.objective.value_of(measurement)

    @cached_property
    def all_measurements(self) -> list[Measurement]:
        """All measurements of the kernel on this device, for any problem, recorded or not.

        They include failures, and runs of this problem that do not count for the search.
        """
        of_this_problem = self.cache.known(self.call.problem)
        of_other_problems = self.cache.known_for_other_problems(self.call.problem)
        return [*of_other_problems, *of_this_problem, *self._pending]

    def counts(self, measurement: Measurement) -> bool:
        """Whether a measurement counts for this search.

        It is of this problem and of a candidate. If outputs are compared, its output was right.
        """
        if measurement.problem != self.call.problem or measurement.config not in self.space:
            return False
        if self._check is None or not measurement.ok:
            return True
        return measurement.relative_error <= self._check

    def measured(self) -> list[Measurement]:
        """Return the measurements that count, one per candidate, in the order of the candidates."""
        newest = {m.config: m for m in self.all_measurements if self.counts(m)}
        return [newest[config] for config in self.candidates if config in newest]

    def unmeasured(self) -> list[Configuration]:
        """Return the candidates whose objective is unknown, in their order.

        The objective of a failure is known: it is infinite.
        """
        with_objective = {m.config for m in self.measured() if not math.isnan(self.value_of(m))}
        return [config for config in self.candidates if config not in with_objective]

    def was_measured(self, config: Configuration) -> bool:
        """Whether a candidate has a measurement, even one that does not count."""
        problem = self.call.problem
        return any(m.problem == problem and m.config == config for m in self.all_measurements)

    def best_measured(self) -> Configuration | None:
        """Return the best candidate that was measured; None if none ran."""
        successes = [m for m in self.measured() if m.ok and not math.isnan(self.value_of(m))]
        if not successes:
            return None
        return min(successes, key=self.value_of).config

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
        """Record measurements of this process; hold them back until a candidate has run."""
        # Whatever they show, this process learns from them.
        self.new_count += len(measurements)
        self._pending += [
            dataclasses.replace(m, static={**m.static, **self._features(m.config)})
            for m in measurements
        ]
        self._invalidate()

        # A candidate has run, so the call is right: failures are those of configurations.
        if any(m.ok for m in self.measured()):
            self.record_pending()
            return

        # Nothing is recorded, so other processes must be free to try these candidates.
        for m in measurements:
            self.cache.release(self.call.problem, m.config)

    def add_reported(self, measurements: Sequence[Measurement]) -> None:
        """Record measurements of the search; those of other processes are recorded already."""
        made_here = [m for m in measurements if m.config not in self.claimed_by_others]
        self.forget_claims([m.config for m in measurements])
        self.add(made_here)

    def record_pending(self) -> None:
        """Record the measurements that were held back."""
        self._record(self._pending)
        self._pending = []

    def record_crashes(self) -> None:
        """Record candidates that crashed two other processes as failed."""
        measured = {m.config for m in self.measured()}
        for config in self.cache.crashed_configurations(self.call.problem):
            if config in self.space and config not in measured:
                reason = "two processes died while measuring it"
                self._record([self.call.failure(config, Status.RUNTIME_ERROR, reason)])

    def try_claim(self, config: Configuration, *, remeasure: bool) -> bool:
        """Claim a candidate; if another process has it, return False and expect its result.

        With ``remeasure``, a candidate that is already measured can be claimed, too.
        """
        is_claimed_here = self.cache.try_claim(self.call.problem, config, remeasure=remeasure)

        # The list has a candidate once, at the end if it was refused again.
        still_claimed = [c for c in self.claimed_by_others if c != config]
        if not is_claimed_here:
            still_claimed.append(config)
        self.claimed_by_others = still_claimed
        return is_claimed_here

    def forget_claims(self, configs: Sequence[Configuration]) -> None:
        """Expect no results of these candidates from other processes any more."""
        self.claimed_by_others = [c for c in self.claimed_by_others if c not in configs]

    def results_of_others(self) -> list[Measurement]:
        """Return new measurements that other processes made of `claimed_by_others`."""
        self._invalidate()
        of_others = [m for m in self.measured() if m.config in self.claimed_by_others]
        return [m for m in of_others if not math.isnan(self.value_of(m))]

    def _record(self, measurements: Sequence[Measurement]) -> None:
        self.cache.append(*measurements)
        self._invalidate()

    def _invalidate(self) -> None:
        """Let `all_measurements` be read again at its next use."""
        self.__dict__.pop("all_measurements", None)
        self.version += 1
