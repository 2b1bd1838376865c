"""Measuring the candidates of one call: with the tuner's own hooks and benchmarker, and safely.

What does not compile, runs out of resources, takes too long to compile or gives other numbers than
the first configuration is a failed measurement; what breaks the device ends the search, as it ends
the process, and is remembered.
"""

import math
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import triton
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from foretune.collect.meters import find_meter
from foretune.measurement import Measurement, Status
from foretune.space import Configuration
from foretune.tune.autotune.ahead import WORKERS, Ahead
from foretune.tune.autotune.call import call_of
from foretune.tune.autotune.checking import Checker
from foretune.tune.autotune.code import GLANCES, Code
from foretune.tune.autotune.configs import configuration_of
from foretune.tune.autotune.place import wait
from foretune.tune.autotune.tuning import Tuning, failed

if TYPE_CHECKING:
    from foretune.tune.autotune.autotuner import Autotuner

CANNOT_RUN = (OutOfResources, PTXASError, CompilationError)
"""What a launch raises, before anything runs, if its configuration is impossible here."""
POWER_WINDOW_S = 0.6
LEAST_MS = 1e-6
"""What a benchmarker that answers 0 must mean."""


class KernelFailure(Exception):
    """An error of the kernel or of its hooks, not of ours: ``cause`` goes to the caller."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Trials:
    """The search for one call's configuration.

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
    """

    def __init__(
        self,
        tuner: "Autotuner",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        configs: Sequence[triton.Config],
        afresh: bool = False,
    ) -> None:
        self.tuner, self.args, self.kwargs = tuner, args, kwargs
        self.configs = list(configs)
        self.named: dict[str, Any] = dict(tuner.nargs)
        self.config = self.configs[0]
        self._afresh = afresh
        self.timings: dict[triton.Config, Any] = {}
        self.fresh = 0
        self._own = {configuration_of(c): c for c in reversed(self.configs)}
        self._stock: dict[triton.Config, Any] = {}
        self.ahead = Ahead(tuner.fn, args, kwargs)

    @cached_property
    def tuning(self) -> Tuning:
        """What chooses."""
        tuner = self.tuner
        call = call_of(tuner.function, tuner.keys, self.named, self.kwargs)
        if self._afresh:
            tuner.brain.memory.forget(call)
        return tuner.brain.tuning(call, self.configs)

    def own(self, config: Configuration) -> triton.Config:
        """Return Triton's form of a candidate."""
        return self._own[config]

    @property
    def nothing_runs(self) -> bool:
        """Whether every candidate was measured now and failed."""
        return self.fresh >= len(self.configs) and not any(
            np.isfinite(np.ravel(t)[0]) for t in self.timings.values()
        )

    def predicted(self) -> triton.Config:
        """Return the best candidate without measuring any."""
        return self._own[self.tuning.best]

    def tune(self) -> None:
        """Measure as much as it takes, and choose."""
        tuning = self.tuning
        self._avoid_abandoned()
        choice = tuning.remembered()
        if choice is None:
            try:
                self._search()
            finally:
                self.ahead.close()
            if self.fresh and tuning.nothing_runs:
                self.timings = self.timings_so_far()
                return
            choice = tuning.choose()
        self.timings = self.timings_so_far()
        self.config = self._own[choice.config]

    def measure(self, config: triton.Config) -> Measurement:
        """Return what came of running one candidate.

        Raises:
            KernelFailure: the device does not work any more.
        """
        call, named = self.tuning.call, configuration_of(config)
        limit_s = self.tuner.options.compile_limit_s
        if not self.ahead.done(config):
            return failed(call, named, Status.TIMEOUT, f"compiles for more than {limit_s:g} s")
        with self.tuner.brain.memory.trial(call, named):
            try:
                timing = self.tuner._bench(*self.args, config=config, **self.kwargs)
                if math.isfinite(float(np.ravel(timing)[0])):
                    self._stock[config] = timing
                    return self._measured(config, timing)
                reason = "does not compile, or needs more than the device has"
                return failed(call, named, Status.INVALID, reason)
            except CANNOT_RUN as e:
                return failed(call, named, Status.COMPILE_ERROR, f"{type(e).__name__}: {e}")
            except Exception as e:
                failure = failed(call, named, Status.RUNTIME_ERROR, f"{type(e).__name__}: {e}")
                self._raise_if_broken(e, failure)
                if not _came_from(self.tuner.fn, e):  # but from a hook: no configuration's fault
                    raise KernelFailure(e) from e
                return failure

    def without(self, config: triton.Config, error: Exception) -> triton.Config | None:
        """Return the next best candidate after ``config`` failed to launch; None if there is none.

        Raises nothing: whatever goes wrong here, the caller has the kernel's own error.
        """
        try:
            named = configuration_of(config)
            text = f"{type(error).__name__}: {error}"
            self.tuning.add(failed(self.tuning.call, named, Status.COMPILE_ERROR, text))
            return None if self.tuning.nothing_runs else self.predicted()
        except Exception:
            return None

    def _search(self) -> None:
        tuning = self.tuning
        in_order = self.tuner.options.budget == "all"
        if in_order:
            known = {m.config for m in tuning.measured()}
            open_ones = [c for c in self.configs if configuration_of(c) not in known]
            self._compile(open_ones)
            for config in open_ones:
                self._try(config)
        else:
            self._glance()
            while (asked := tuning.next()) is not None:
                self._compile([self._own[c] for c in (asked, *tuning.promising(self._room()))])
                if not self._look(asked):
                    self._try(self._own[asked])

    def _glance(self) -> None:
        """Look at the first stages of some candidates' code, where nothing else is known."""
        tuning = self.tuning
        if tuning.in_the_dark and tuning.next() is not None:
            some = tuning.promising(GLANCES)
            code = self._code.glance([self._own[c] for c in some], WORKERS)
            for config, shown in zip(some, code, strict=True):
                tuning.note(config, shown)

    def _look(self, config: Configuration) -> bool:
        """Look at a candidate's machine code; return whether another one now seems better."""
        tuning, compiled = self.tuning, self.ahead.compiled(self._own[config])
        if compiled is None or tuning.knows_code(config):
            return False
        tuning.note(config, self._code.look(compiled))
        return tuning.knows_code(config) and tuning.next() != config

    @cached_property
    def _code(self) -> Code:
        return Code(self.tuner.fn, self.args, self.kwargs, self.tuning.call.device)

    def _compile(self, configs: Sequence[triton.Config]) -> None:
        self.ahead.compile(configs)
        self.ahead.settle(self.tuner.options.compile_limit_s)

    def _room(self) -> int:
        """Return how many more candidates are worth compiling ahead of their turn."""
        return min(WORKERS, self.tuner.options.most(len(self.configs)) - self.fresh) - 1

    def _try(self, config: triton.Config) -> None:
        measurement = self.measure(config)
        self.fresh += 1
        self.tuning.add(measurement)

    def _measured(self, config: triton.Config, timing: Any) -> Measurement:
        call, named = self.tuning.call, configuration_of(config)
        error = self._checker.error(config) if self._checker else math.nan
        limit = self.tuner.options.check
        if limit is not None and not error <= limit:
            reason = f"differs from the first configuration by {error:.2g}, more than {limit:.2g}"
            return failed(call, named, Status.WRONG_RESULT, reason)
        samples = tuple(sorted(float(t) for t in np.ravel(timing)))
        samples = tuple(max(t, LEAST_MS) for t in samples)
        time_ms = max(float(np.ravel(timing)[0]), LEAST_MS)
        power_w, energy_mj = self._power(config, time_ms)
        return Measurement(
            call.kernel,
            call.problem,
            named,
            call.device.name,
            Status.OK,
            time_ms,
            samples,
            power_w,
            energy_mj,
            relative_error=error,
            environment=call.subject.versions,
        )

    @cached_property
    def _checker(self) -> Checker | None:
        if self.tuner.options.check is None:
            return None
        return Checker(self.launch, self.named | self.kwargs, self.configs[0])

    def launch(self, config: triton.Config) -> None:
        """Run a candidate once, with the hooks of a measured launch."""
        tuner, knobs = self.tuner, config.all_kwargs()
        full = {**self.named, **self.kwargs, **knobs}
        if config.pre_hook:
            config.pre_hook(full)
        tuner.pre_hook(full)
        try:
            tuner.fn.run(*self.args, **self.kwargs, **knobs)
        except Exception as e:
            tuner.post_hook(full, exception=e)
            raise
        tuner.post_hook(full, exception=None)

    def _power(self, config: triton.Config, time_ms: float) -> tuple[float, float]:
        """Return mean power (W) and the energy of one launch (mJ); NaN unless it is asked for."""
        device = self.tuning.call.device
        meter = find_meter(device.kind, device.index) if self.tuning.needs_power else None
        if meter is None:
            return math.nan, math.nan
        batch, launches = max(1, int(20.0 / time_ms)), 0
        wait()
        with meter.window() as window:
            end = time.perf_counter() + POWER_WINDOW_S
            while time.perf_counter() < end:
                for _ in range(batch):
                    self.launch(config)
                launches += batch
                wait()
        return window.power_w, window.energy_mj(launches)

    def _raise_if_broken(self, error: Exception, failure: Measurement) -> None:
        """Raise ``error`` if the device it happened on works no more; remember who did it."""
        try:
            wait()
        except Exception:
            self.tuner.brain.memory.record(self.tuning.call, [failure])
            raise KernelFailure(error) from error

    def _avoid_abandoned(self) -> None:
        """Count as failed what took another process with it."""
        tuning, memory = self.tuning, self.tuner.brain.memory
        known = {m.config for m in tuning.measured()}
        for config in memory.abandoned(tuning.call):
            if config in self._own and config not in known:
                reason = "its measurement took the process with it"
                failure = failed(tuning.call, config, Status.RUNTIME_ERROR, reason)
                memory.record(tuning.call, [failure])
                tuning.forget_judgement()

    def timings_so_far(self) -> dict[triton.Config, Any]:
        """Return times of everything measured of this problem, in the order of the list."""
        found = {m.config: m for m in self.tuning.measured()}
        return {
            config: self._stock.get(config) or _quantiles(found[named])
            for config in self.configs
            if (named := configuration_of(config)) in found
        }


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


def _came_from(fn: Any, error: BaseException) -> bool:
    """Whether ``error`` went through the launch of the kernel, not through a hook around it."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_locals.get("self") is fn:
            return True
        trace = trace.tb_next
    return False
