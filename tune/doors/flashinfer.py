"""Foretune inside FlashInfer's autotuner: it times a few tactics instead of all."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partialmethod
from typing import Any, TypeVar

from foretune.collect import local_device
from foretune.collect.versions import toolchain
from foretune.errors import UsageError
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.search.ordered import OrderedSearcher
from foretune.space import Configuration, ListedSpace
from foretune.tune.doors.knobs import flat_knobs, internals_of, timed
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.store.fallible import StoreLocation
from foretune.tune.store.subject import Subject

T = TypeVar("T")
DEFAULT = -1
"""FlashInfer's number of a runner's default tactic."""
MIN_BUDGET = 3
"""Two tactics besides the default show which is faster; one shows nothing about others."""
TESTED = "FlashInfer 0.7.2"
FULL_BUCKETS = 2
"""Number of buckets per operator that are timed in full: its largest and its smallest."""


def patch_flashinfer(budget: int = 4, store: StoreLocation = None) -> Callable[[], None]:
    """Let FlashInfer time and compile ``budget`` tactics per bucket of sizes, the default included.

    The first two buckets of an operator, its largest and smallest, are timed in full. FlashInfer's
    times of earlier buckets and processes order the tactics of later ones, and decide between
    tactics that are equally fast up to noise. If Foretune fails, FlashInfer times all tactics. In a
    process group of FlashInfer's autotuner, the first rank decides for all.

    Args:
        budget: number of tactics per bucket, at least `MIN_BUDGET`.
        store: path or URL of the store for the times; None for the user's own, False for none.

    Returns:
        a function that undoes the patch.

    Raises:
        UsageError: ``budget`` is too small, or FlashInfer is absent, patched or of another version.
    """
    if budget < MIN_BUDGET:
        raise UsageError(f"budget is {budget}: give {MIN_BUDGET} or more, the default included")
    with internals_of(TESTED):
        from flashinfer.autotuner import get_autotune_process_group
        from flashinfer.autotuner.autotuner import AutoTuner
        from flashinfer.tactics_blocklist import TacticsBlocklist

        methods = _Methods(
            profiles=vars(AutoTuner)["_generate_optimization_profiles"],
            prepare=vars(AutoTuner)["_prepare_input_tensors"],
            profile=vars(AutoTuner)["_profile_single_kernel"],
            filter=vars(TacticsBlocklist)["filter"],
        )
    if isinstance(methods.filter, partialmethod):
        raise UsageError("FlashInfer is already patched: undo that first")

    def install(replacements: Any) -> None:
        AutoTuner._generate_optimization_profiles = replacements.profiles
        AutoTuner._prepare_input_tensors = replacements.prepare
        AutoTuner._profile_single_kernel = replacements.profile
        TacticsBlocklist.filter = replacements.filter

    door = _Door(budget, store, get_autotune_process_group, methods)
    install(
        _Methods(
            profiles=partialmethod(_pass_on, door.profiles),
            prepare=partialmethod(_pass_on, door.prepare),
            profile=partialmethod(_pass_on, door.profile),
            filter=partialmethod(_pass_on, door.filter),
        )
    )
    return lambda: install(methods)


@dataclass(frozen=True)
class _Methods:
    """The methods that are replaced: ``filter`` is the blocklist's, the others the autotuner's."""

    profiles: Any
    prepare: Any
    profile: Any
    filter: Any


def _pass_on(owner: Any, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
    return method(owner, *args, **named)


class _Door:
    """Replacements of FlashInfer's methods, and the times so far."""

    def __init__(
        self, budget: int, store: StoreLocation, group: Callable[[], Any], real: _Methods
    ) -> None:
        self._budget = budget
        self._store = store
        self._group = group
        self._real = real
        """FlashInfer's own methods."""
        self._operators: dict[str, TacticTimes] = {}
        self._operator = ""
        self._bucket = Problem()
        """The bucket of sizes that FlashInfer times now."""
        self._expected: list[tuple[Any, Any]] = []
        """The runners and tactics that FlashInfer will time next, each twice."""
        self._timed: dict[Configuration, float] = {}
        """Milliseconds of this bucket's tactics, infinite for failures."""
        self._estimates: dict[Configuration, float] | None = None

    def profiles(self, tuner: Any, *args: Any, **named: Any) -> Any:
        """Return the buckets: the largest, the smallest, then the others in descending order."""
        ascending = self._real.profiles(tuner, *args, **named)
        if len(ascending) < 2:
            return list(ascending)
        smallest, *others, largest = ascending
        return [largest, smallest, *reversed(others)]

    def prepare(self, tuner: Any, profile: Any, inputs: Any) -> Any:
        """Record the sizes and types of the bucket."""
        with suppress(Exception):
            types = [str(getattr(x, "dtype", "")) for x in inputs]
            self._bucket = Problem(
                dict(flat_knobs({"size": profile.get_opt_shapes(), "type": types}))
            )
        return self._real.prepare(tuner, profile, inputs)

    def filter(self, blocklist: Any, custom_op: str, runner: Any, tactics: list[Any]) -> Any:
        """Return the tactics to time, twice: at the second time, `profile` returns estimates."""
        allowed = self._real.filter(blocklist, custom_op, runner, tactics)
        self._operator = f"{custom_op} {type(runner).__name__}"
        self._expected = []
        self._timed = {}
        self._estimates = None
        chosen = self._on_all_ranks(lambda: self._chosen(allowed))
        if chosen is None:
            return allowed

        # If not all tactics are timed, the default is, too.
        default = [DEFAULT] if len(chosen) < len(allowed) else []
        once = [*default, *(allowed[i] for i in chosen)]
        twice = once * 2
        self._expected = [(runner, tactic) for tactic in twice]
        return twice

    def profile(
        self, tuner: Any, runner: Any, inputs: Any, tactic: Any, *args: Any, **named: Any
    ) -> Any:
        """Time a tactic as FlashInfer does, but return infinity at first; estimates follow."""
        # Others may time tactics that are not on our list.
        if not self._expected or self._expected[0] != (runner, tactic):
            return self._real.profile(tuner, runner, inputs, tactic, *args, **named)
        del self._expected[0]

        # The second time: every tactic was timed, so all estimates are known.
        config = _configuration(tactic)
        if config in self._timed:
            if self._estimates is None:
                self._estimates = self._on_all_ranks(self._estimated) or self._timed
            return self._estimates.get(config, self._timed[config])

        self._timed[config] = math.inf
        try:
            self._timed[config] = self._real.profile(tuner, runner, inputs, tactic, *args, **named)
        finally:
            with suppress(Exception):
                if tactic != DEFAULT:
                    self._times.record(self._bucket, config, self._timed[config])
        return math.inf

    @property
    def _times(self) -> "TacticTimes":
        """The times of the current operator so far."""
        if self._operator not in self._operators:
            subject = Subject(self._operator, *_environment())
            self._operators[self._operator] = TacticTimes(subject, self._store)
        return self._operators[self._operator]

    def _chosen(self, tactics: list[Any]) -> list[int]:
        """Return the indices of the tactics to time, or of all; if not all, without the default."""
        others = [i for i, tactic in enumerate(tactics) if tactic != DEFAULT]
        if len(others) < self._budget:
            return list(range(len(tactics)))
        configs = [_configuration(tactics[i]) for i in others]
        chosen = self._times.choose(self._bucket, configs, self._budget - 1)
        if len(chosen) == len(others):
            return list(range(len(tactics)))
        return [others[i] for i in chosen]

    def _estimated(self) -> dict[Configuration, float]:
        default = _configuration(DEFAULT)
        times = {config: time for config, time in self._timed.items() if config != default}
        return self._timed | self._times.estimates(self._bucket, times)

    def _on_all_ranks(self, make: Callable[[], T]) -> T | None:
        """Return what ``make`` returns on the group's first rank; None if it fails there."""
        import torch.distributed as dist

        group = self._group()
        result: list[T | None] = [None]
        if group is None or dist.get_rank(group) == 0:
            with suppress(Exception):
                result[0] = make()
        if group is not None:
            dist.broadcast_object_list(result, dist.get_global_rank(group, 0), group)
        return result[0]


class TacticTimes:
    """The times of an operator's tactics, kept in a store; a bucket is a problem."""

    def __init__(self, subject: Subject, store: StoreLocation) -> None:
        self._subject = subject
        self._cache = MeasurementCache(subject, store)

    def choose(self, problem: Problem, configs: Sequence[Configuration], count: int) -> list[int]:
        """Return the indices of ``count`` tactics to time; all of them in the first buckets."""
        earlier = self._cache.known_for_other_problems(Problem())  # of this bucket, too
        if len({m.problem for m in earlier}) < FULL_BUCKETS:
            return list(range(len(configs)))
        space = ListedSpace(configs)
        searcher = OrderedSearcher(space, problem=problem, other_measurements=earlier)
        return sorted(space.index(config) for config in searcher.ask(count))

    def record(self, problem: Problem, config: Configuration, time_ms: float) -> None:
        """Record a time in milliseconds; infinite is a failure."""
        self._cache.append(self._measurement(problem, config, time_ms))

    def estimates(
        self, problem: Problem, times: Mapping[Configuration, float]
    ) -> dict[Configuration, float]:
        """Return the milliseconds of timed tactics, estimated from all buckets together."""
        others = self._cache.known_for_other_problems(problem)
        space = ListedSpace(times)
        searcher = OrderedSearcher(space, problem=problem, other_measurements=others)
        searcher.tell([self._measurement(problem, c, t) for c, t in times.items()])
        expected = searcher.search_posterior.log_mean
        return {
            config: math.exp(expected[i]) if math.isfinite(times[config]) else math.inf
            for i, config in enumerate(space)
        }

    def _measurement(self, problem: Problem, config: Configuration, time_ms: float) -> Measurement:
        subject = self._subject
        return timed(
            subject.kernel,
            problem,
            config,
            device=subject.device,
            time_ms=time_ms,
            source="flashinfer",
        )


@cache
def _environment() -> tuple[str, str, str]:
    """Return FlashInfer's version, the device's name, and the versions that times depend on."""
    import flashinfer
    import torch

    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else local_device("cpu", measure=False).name
    return f"flashinfer {flashinfer.__version__}", device, toolchain("gpu" if cuda else "cpu")


def _configuration(tactic: Any) -> Configuration:
    """Return a tactic's knobs; a plain number is a name, without neighbors."""
    plain = isinstance(tactic, int)
    return Configuration(dict(flat_knobs(str(tactic) if plain else tactic, "tactic")))
