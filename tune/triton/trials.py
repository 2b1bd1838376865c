"""The search for one call's configuration: compile ahead, read the code, measure, choose."""

import math
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import triton

from foretune.errors import ForetuneWarning
from foretune.measurement import Measurement, Status
from foretune.space import Configuration
from foretune.tune.triton.ahead import WORKERS, Ahead
from foretune.tune.triton.checking import CannotCompare
from foretune.tune.triton.code import GLANCES, Code
from foretune.tune.triton.configs import configuration_of
from foretune.tune.triton.decorated import Decorated
from foretune.tune.triton.measuring import Measurer
from foretune.tune.triton.tuning import Tuning
from foretune.tune.triton.tunings import Tunings

PATIENCE_S, PAUSE_S = 30.0, 0.02
"""How long one waits for what other processes are measuring, and how often one looks."""


class Busy(set[Configuration]):
    """Candidates that other processes are measuring; their results are waited for, not for ever.

    Attributes:
        patient: whether they still are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.patient = True
        self._until: float | None = None

    def wait(self) -> bool:
        """Wait a moment, and forget who was busy; return whether anybody was."""
        if not self:
            return False
        now = time.monotonic()
        self._until = self._until or now + PATIENCE_S
        self.patient = now < self._until
        self.clear()
        time.sleep(PAUSE_S)
        return True


class Trials:
    """What is known and tried of one call.

    Args:
        kernel: what is called.
        tunings: chooses; calls of the kernel share it.
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
        kernel: Decorated,
        tunings: Tunings,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        configs: Sequence[triton.Config],
        afresh: bool = False,
    ) -> None:
        self.kernel, self.args, self.kwargs = kernel, args, kwargs
        self.configs = list(configs)
        self.config = self.configs[0]
        self.timings: dict[triton.Config, Any] = {}
        self.fresh = 0
        self.nothing_runs = False
        self._afresh = afresh
        self._uncompared = False
        self._named = [configuration_of(c) for c in self.configs]
        self._own = dict(zip(reversed(self._named), reversed(self.configs), strict=True))
        self._tunings = tunings
        self.ahead = Ahead(kernel.fn, args, kwargs)

    @cached_property
    def tuning(self) -> Tuning:
        """What chooses."""
        call = self.kernel.call(self.args, self.kwargs)
        call = replace(call, knobs=tuple(self._named[-1]))
        if self._afresh:
            self._tunings.history.forget(call)
        return self._tunings.of(call, self._named)

    @property
    def lock(self) -> threading.RLock:
        """To be held by who uses `tuning`."""
        return self._tunings.lock

    def own(self, config: Configuration) -> triton.Config:
        """Return Triton's form of a candidate."""
        return self._own[config]

    def settled(self) -> triton.Config | None:
        """Return the choice that was made before; None if there is none that suffices."""
        with self.lock:
            choice = self.tuning.remembered()
        return None if choice is None else self._own[choice.config]

    def predicted(self) -> triton.Config:
        """Return the best candidate without measuring any."""
        with self.lock:
            return self._own[self.tuning.best]

    def tune(self) -> None:
        """Measure as much as it takes, and choose.

        Raises:
            KernelFailure: the device works no more, or the call itself is wrong.
        """
        with self.lock:
            self.tuning.avoid_abandoned()
        settled = self.settled()
        if settled is None:
            self._search()
        with self.lock:
            self.fresh = self.tuning.fresh
            self.nothing_runs = settled is None and self.tuning.nothing_runs
            self.timings = self.timings_so_far()
            if self._uncompared:  # the first is right by definition
                best = self.tuning.best_measured()
                self.config = self.configs[0] if best is None else self._own[best]
            elif self.nothing_runs:
                self.config = self._own[self.tuning.least_bad()]
            else:
                self.config = settled or self._own[self.tuning.choose().config]

    def without(self, config: triton.Config, error: Exception) -> triton.Config | None:
        """Return the next best candidate after ``config`` failed to launch; None if there is none.

        Raises nothing: whatever goes wrong here, the caller has the kernel's own error.
        """
        try:
            with self.lock:
                text = f"{type(error).__name__}: {error}"
                self.tuning.add(self.failed(config, Status.COMPILE_ERROR, text))
                return None if self.tuning.nothing_runs else self._own[self.tuning.best]
        except Exception:
            return None

    def settle_on_best(self) -> None:
        """Settle on what is best now that some did not run, for later processes too."""
        with self.lock:
            self.tuning.keep_failures()
            self.tuning.choose()

    def timings_so_far(self) -> dict[triton.Config, Any]:
        """Return times of everything measured of this problem, in the order of the list."""
        found = {m.config: m for m in self.tuning.measured()}
        return {
            config: self._measurer.timings.get(config) or _quantiles(found[named])
            for named, config in zip(self._named, self.configs, strict=True)
            if named in found
        }

    def failed(self, config: triton.Config, status: Status, reason: str) -> Measurement:
        """Return the measurement of a candidate that did not run."""
        return self.tuning.call.failed(configuration_of(config), status, reason)

    def timed_out(self, config: triton.Config) -> Measurement:
        """Return the measurement of a candidate that was given up."""
        reason = f"compiles for more than {self.kernel.options.compile_limit_s:g} s"
        return self.failed(config, Status.TIMEOUT, reason)

    @cached_property
    def _measurer(self) -> Measurer:
        tuning = self.tuning
        return Measurer(
            self.kernel, self.args, self.kwargs, self.configs, tuning.call, self._tunings.history,
            tuning.needs_power,
        )  # fmt: skip

    def _search(self) -> None:
        tuning, lock = self.tuning, self.lock
        try:
            if self.kernel.options.budget == "all":
                with lock:
                    self._compile([self._own[c] for c in tuning.unmeasured()])
            else:
                self._glance()
            busy = Busy()
            while True:
                with lock:
                    asked = self._next(busy)
                    also = tuning.promising(self._room()) if asked else []
                if asked is None:
                    if not busy.wait():
                        return
                    with lock:
                        tuning.look_again()
                    continue
                self._compile([self._own[c] for c in dict.fromkeys((asked, *also))])
                if self._look(asked):
                    continue
                if not busy.patient or self._claims(asked):
                    self._try(self._own[asked])
                else:
                    busy.add(asked)
                    with lock:
                        tuning.look_again()
        except CannotCompare as e:
            self._uncompared = True
            warnings.warn(
                f"{tuning.call.kernel} keeps to configurations whose results were compared, or the "
                f"first: {e}",
                ForetuneWarning,
                stacklevel=2,
            )
        finally:
            self._measurer.close()

    def _next(self, busy: "Busy") -> Configuration | None:
        """Return the candidate to measure now; None if there is none but busy ones."""
        tuning = self.tuning
        if self.kernel.options.budget != "all":
            if busy and tuning.is_over():
                busy.clear()
            return tuning.next(busy)
        return next((c for c in tuning.unmeasured() if c not in busy), None)

    def _claims(self, config: Configuration) -> bool:
        """Return whether no other process has measured ``config`` meanwhile, or is at it."""
        known = self._afresh or any(m.config == config for m in self.tuning.measured())
        return self._tunings.history.claim(self.tuning.call, config, again=known)

    def _glance(self) -> None:
        """Look at the first stages of some candidates' code, where nothing else is known."""
        tuning = self.tuning
        with self.lock:
            blind = tuning.in_the_dark and not tuning.is_over()
            some = tuning.promising(GLANCES) if blind else []
        code = self._code.glance([self._own[c] for c in some], WORKERS)
        with self.lock:
            for config, shown in zip(some, code, strict=True):
                tuning.note(config, shown)

    def _look(self, config: Configuration) -> bool:
        """Look at a candidate's machine code; return whether it shows anything new."""
        tuning, compiled = self.tuning, self.ahead.compiled(self._own[config])
        if compiled is None or tuning.knows_code(config):
            return False
        shown = self._code.look(compiled)
        with self.lock:
            tuning.note(config, shown)
            return tuning.knows_code(config)

    @cached_property
    def _code(self) -> Code:
        return Code(self.kernel.fn, self.args, self.kwargs, self.tuning.call.device)

    def _compile(self, configs: Sequence[triton.Config]) -> None:
        self.ahead.compile(configs, self.kernel.options.compile_limit_s)

    def _room(self) -> int:
        """Return how many more candidates are worth compiling ahead of their turn."""
        left = self.kernel.options.most(len(self.configs)) - self.tuning.fresh
        return min(WORKERS, left) - 1

    def _try(self, config: triton.Config) -> None:
        if self.ahead.done(config):
            measurement = self._measurer.measure(config)
        else:
            measurement = self.timed_out(config)
        with self.lock:
            self.tuning.add(measurement)


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
