"""The search for one call's configuration: compile ahead, read the code, measure, choose."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import triton

from foretune.measurement import Measurement, Status
from foretune.space import Configuration
from foretune.tune.triton.ahead import WORKERS, Ahead
from foretune.tune.triton.call import call_of
from foretune.tune.triton.code import GLANCES, Code
from foretune.tune.triton.configs import configuration_of
from foretune.tune.triton.measuring import Measurer, failed
from foretune.tune.triton.tuning import Tuning

if TYPE_CHECKING:
    from foretune.tune.triton.autotuner import Autotuner


class Trials:
    """What is known and tried of one call.

    Args:
        tuner: whose kernel it is.
        args: positional arguments of the call.
        kwargs: arguments by name, and ``grid``.
        configs: the candidates, after pruning; at least two.
        afresh: as if nothing were known of this call.

    Attributes:
        config: the choice so far.
        timings: of every candidate measured now or before: median and 20 and 80 % quantiles, ms.
        fresh: how many of them were measured now.
        nothing_runs: whether every candidate was tried and failed.
    """

    def __init__(
        self,
        tuner: "Autotuner",
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        configs: Sequence[triton.Config],
        afresh: bool = False,
    ) -> None:
        self.tuner, self.args, self.kwargs = tuner, args, kwargs
        self.configs = list(configs)
        self.config = self.configs[0]
        self.timings: dict[triton.Config, Any] = {}
        self.fresh = 0
        self.nothing_runs = False
        self._afresh = afresh
        self._own = {configuration_of(c): c for c in reversed(self.configs)}
        self._brain = tuner.brain
        self.ahead = Ahead(tuner.fn, args, kwargs)

    @cached_property
    def tuning(self) -> Tuning:
        """What chooses."""
        tuner = self.tuner
        named = dict(zip(tuner.arg_names, self.args, strict=False))
        knobs = next(iter(self._own))
        call = call_of(tuner.function, tuner.keys, named, self.kwargs, tuner.options.mode, knobs)
        if self._afresh:
            self._brain.memory.forget(call)
        return self._brain.tuning(call, self.configs)

    def own(self, config: Configuration) -> triton.Config:
        """Return Triton's form of a candidate."""
        return self._own[config]

    def settled(self) -> triton.Config | None:
        """Return the choice that was made before; None if there is none that suffices."""
        with self._brain.lock:
            choice = self.tuning.remembered()
        return None if choice is None else self._own[choice.config]

    def predicted(self) -> triton.Config:
        """Return the best candidate without measuring any."""
        with self._brain.lock:
            return self._own[self.tuning.best]

    def tune(self) -> None:
        """Measure as much as it takes, and choose.

        Raises:
            KernelFailure: the device works no more, or the call itself is wrong.
        """
        self._avoid_abandoned()
        settled = self.settled()
        if settled is None:
            self._search()
        with self._brain.lock:
            self.fresh = self.tuning.fresh
            self.nothing_runs = settled is None and self.tuning.nothing_runs
            self.timings = self.timings_so_far()
            if self.nothing_runs:
                self.config = self._own[self.tuning.least_bad()]
            else:
                self.config = settled or self._own[self.tuning.choose().config]

    def without(self, config: triton.Config, error: Exception) -> triton.Config | None:
        """Return the next best candidate after ``config`` failed to launch; None if there is none.

        Raises nothing: whatever goes wrong here, the caller has the kernel's own error.
        """
        try:
            with self._brain.lock:
                text = f"{type(error).__name__}: {error}"
                self.tuning.add(failed(self.tuning.call, config, Status.COMPILE_ERROR, text))
                return None if self.tuning.nothing_runs else self._own[self.tuning.best]
        except Exception:
            return None

    def settle_on_best(self) -> None:
        """Settle on what is best now that some did not run, for later processes too."""
        with self._brain.lock:
            self.tuning.keep_failures()
            self.tuning.choose()

    def timings_so_far(self) -> dict[triton.Config, Any]:
        """Return times of everything measured of this problem, in the order of the list."""
        found = {m.config: m for m in self.tuning.measured()}
        return {
            config: self._measurer.timings.get(config) or _quantiles(found[named])
            for config in self.configs
            if (named := configuration_of(config)) in found
        }

    @cached_property
    def _measurer(self) -> Measurer:
        tuning = self.tuning
        return Measurer(
            self.tuner, self.args, self.kwargs, self.configs, tuning.call, tuning.needs_power
        )

    def _search(self) -> None:
        tuning, lock = self.tuning, self._brain.lock
        try:
            if self.tuner.options.budget == "all":
                with lock:
                    open_ones = [self._own[c] for c in tuning.unmeasured()]
                self._compile(open_ones)
                for config in open_ones:
                    self._try(config)
                return
            self._glance()
            while True:
                with lock:
                    asked = tuning.next()
                    also = tuning.promising(self._room())
                if asked is None:
                    return
                self._compile([self._own[c] for c in dict.fromkeys((asked, *also))])
                if not self._look(asked):
                    self._try(self._own[asked])
        finally:
            self._measurer.close()

    def _glance(self) -> None:
        """Look at the first stages of some candidates' code, where nothing else is known."""
        tuning = self.tuning
        with self._brain.lock:
            some = tuning.promising(GLANCES) if tuning.in_the_dark and tuning.next() else []
        code = self._code.glance([self._own[c] for c in some], WORKERS)
        with self._brain.lock:
            for config, shown in zip(some, code, strict=True):
                tuning.note(config, shown)

    def _look(self, config: Configuration) -> bool:
        """Look at a candidate's machine code; return whether another one now seems better."""
        tuning, compiled = self.tuning, self.ahead.compiled(self._own[config])
        if compiled is None or tuning.knows_code(config):
            return False
        shown = self._code.look(compiled)
        with self._brain.lock:
            tuning.note(config, shown)
            return tuning.knows_code(config) and tuning.next() != config

    @cached_property
    def _code(self) -> Code:
        return Code(self.tuner.fn, self.args, self.kwargs, self.tuning.call.device)

    def _compile(self, configs: Sequence[triton.Config]) -> None:
        self.ahead.compile(configs, self.tuner.options.compile_limit_s)

    def _room(self) -> int:
        """Return how many more candidates are worth compiling ahead of their turn."""
        left = self.tuner.options.most(len(self.configs)) - self.tuning.fresh
        return min(WORKERS, left) - 1

    def _try(self, config: triton.Config) -> None:
        if self.ahead.done(config):
            measurement = self._measurer.measure(config)
        else:
            limit_s = self.tuner.options.compile_limit_s
            reason = f"compiles for more than {limit_s:g} s"
            measurement = self._measurer.failed(config, Status.TIMEOUT, reason)
        with self._brain.lock:
            self.tuning.add(measurement)

    def _avoid_abandoned(self) -> None:
        """Count as failed what took another process with it."""
        with self._brain.lock:
            tuning, memory = self.tuning, self._brain.memory
            known = {m.config for m in tuning.measured()}
            for config in memory.abandoned(tuning.call):
                if config in self._own and config not in known:
                    reason = "its measurement took the process with it"
                    failure = failed(tuning.call, self._own[config], Status.RUNTIME_ERROR, reason)
                    memory.record(tuning.call, [failure])
                    tuning.forget_judgement()


def fail_if_conflicting(configs: Sequence[triton.Config], kwargs: Mapping[str, Any]) -> None:
    """Refuse a call that passes what is being tuned, as stock Triton does, in its words."""
    conflicts = kwargs.keys() & configs[0].kwargs.keys()
    if conflicts:
        raise ValueError(
            f"Conflicting meta-parameters: {', '.join(conflicts)}."
            " Make sure that you don't re-define auto-tuned symbols."
        )


def _quantiles(m: Measurement) -> list[float]:
    """Return what a benchmarker would: median, 20 and 80 % quantiles, ms; infinite if it failed."""
    if not m.ok:
        return [math.inf] * 3
    if len(m.time_ms_samples) == 3:
        low, _, high = sorted(m.time_ms_samples)
        return [m.time_ms, low, high]
    return [m.time_ms] * 3
