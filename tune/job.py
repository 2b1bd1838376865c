"""The state shared by the searches of one tuning job."""

import inspect
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar

from foretune.collect.machine_load import wait_until_idle
from foretune.collect.power import explain_missing_meter, find_meter
from foretune.collect.runner import Runner
from foretune.device import Device
from foretune.errors import (
    MeasurementError,
    MeterUnavailable,
    PredictorError,
    UsageError,
    require_known,
    warn,
)
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.models.guides.guide import Guide, make_guide
from foretune.models.guides.request import PredictorRequest
from foretune.models.saved.lookup import PredictorSource, find_guide
from foretune.objective import ConstrainedObjective, Limit, Objective, limitable_columns_of
from foretune.problem import Problem
from foretune.registry import load, registered
from foretune.search.loop import SearchResult, run, search
from foretune.search.prior import prior_from_guide
from foretune.search.searcher import AskTell, Prior
from foretune.search.stopping import DEFAULT_BUDGET, Stopping, make_stopping
from foretune.space import Configuration, SearchSpace
from foretune.support.progress import SILENT, Progress
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.store.fallible import StoreLocation
from foretune.tune.store.subject import Allowance

if TYPE_CHECKING:
    from foretune.datasets.run_log import RunLog
    from foretune.search.factory import SearcherKind

C = TypeVar("C", bound=Hashable)

DEFAULT_STOPPING = Stopping(DEFAULT_BUDGET)
MAX_PARALLEL = 4
"""Maximum parallel measurements of one problem: later ones cannot learn from earlier ones."""


class SearchOptions(TypedDict, total=False):
    """How to search, and where results are stored.

    Attributes:
        budget: number of new measurements of the search, before verification. ``"auto"`` stops at
            ``regret``, or when one more measurement gains too little. The default is 10 (of a
            function, source or program 20, of a workload 100, of a campaign the preset's), or no
            limit if ``seconds`` is given.
        regret: accepted expected regret of the incumbent; by default 0.03 with ``"auto"``.
        seconds: maximum wall time of the search; builds count.
        limits: configurations that violate one never win; searchers see them as failures.
        searcher: a registered name, a `Searcher` class, or an Optuna sampler.
        seed: seed of all random choices.
        store: shares measurements and choices: a `Store`, its path or URL. None is the user's own
            store, False is none.
        patience_s: seconds to wait for an idle machine before the search and the comparison.
        progress: receives progress reports. For a function, source or program, True, the default,
            shows them on stderr. False prints nothing.
    """

    budget: int | Literal["auto"] | None
    regret: float | None
    seconds: float | None
    limits: Sequence[Limit | str]
    searcher: "SearcherKind"
    seed: int | None
    store: StoreLocation
    patience_s: float
    progress: Progress | bool


def check_options(
    options: Mapping[str, object],
    kind: Any,
    lacks: Sequence[str] = (),
    function: Callable[..., Any] | None = None,
) -> None:
    """Raise UnknownName for an option that is not in ``kind``, or is in ``lacks``.

    The error also lists the named parameters of the ``function`` that takes the options.
    """
    parameters = [] if function is None else inspect.signature(function).parameters.values()
    named = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
    require_known("option", options, (kind.__optional_keys__ - {*lacks}) | named)


def limits_of(options: SearchOptions) -> tuple[Limit, ...]:
    """Return the limits as a tuple; a single limit is accepted."""
    given = options.get("limits", ())
    listed = [given] if isinstance(given, Limit | str) else given
    return tuple(x if isinstance(x, Limit) else Limit.parse(x) for x in listed)


@dataclass(frozen=True)
class TuningJob:
    """How to search (`SearchOptions`) for a kernel, whatever the problem.

    Raises MeterUnavailable if objectives or limits need power, which cannot be measured here.
    """

    kernel: Kernel
    runner: Runner
    cache: MeasurementCache
    objectives: tuple[Objective, ...] = (Objective.TIME,)
    limits: tuple[Limit, ...] = ()
    searcher: "SearcherKind" = "surrogate"
    stopping: Stopping = DEFAULT_STOPPING
    seed: int = 0
    progress: Progress = SILENT
    patience_s: float = 0.0
    allowed: Allowance | None = None
    """What the user allowed to spend, if ``stopping`` is only what is left of it."""

    def __post_init__(self) -> None:
        needs = [f"objective {o.value!r}" for o in self.objectives if o.needs_power]
        advice = "minimize time" if needs else "leave that limit out"
        needs += [f"limit {limit.column!r}" for limit in self.limits if limit.needs_power]
        if needs and find_meter(self.device.kind, self.device.index) is None:
            reason = explain_missing_meter(self.device.kind)
            raise MeterUnavailable(f"{needs[0]} needs a power meter: {reason}; {advice}")

    @classmethod
    def from_options(
        cls,
        kernel: Kernel,
        runner: Runner,
        options: SearchOptions,
        *objectives: Objective,
        log: "RunLog | None" = None,
        default_budget: int = DEFAULT_BUDGET,
        lacks: Sequence[str] = (),
    ) -> Self:
        """Return a job with these options; ``lacks`` are options that the caller does not take.

        Raises UnknownName for such an option, UsageError if a value is invalid.
        """
        check_options(options, SearchOptions, lacks)
        budget = options.get("budget")
        seconds = options.get("seconds")
        if budget is None and seconds is None:
            budget = default_budget
        progress = options.get("progress") or SILENT
        return cls(
            kernel=kernel,
            runner=runner,
            cache=MeasurementCache.for_kernel(kernel, runner.device, options.get("store"), log),
            objectives=objectives,
            limits=limits_of(options),
            searcher=options.get("searcher", "surrogate"),
            stopping=make_stopping(budget, options.get("regret"), seconds),
            seed=options.get("seed") or 0,
            progress=SILENT if isinstance(progress, bool) else progress,
            patience_s=options.get("patience_s", 0.0),
        )

    @property
    def device(self) -> Device:
        """The device that is tuned for."""
        return self.runner.device

    @property
    def allowance(self) -> Allowance:
        """What the user allowed to spend on one search."""
        if self.allowed is not None:
            return self.allowed
        return Allowance(
            measurements=self.stopping.measurements,
            seconds=self.stopping.seconds,
            regret=self.stopping.regret,
        )

    def with_remaining_budget(self, remaining: Stopping) -> Self:
        """Return the job with what is left of its budget; `allowance` stays what it is."""
        return replace(self, stopping=remaining, allowed=self.allowance)

    @property
    def constrained_objectives(self) -> tuple[ConstrainedObjective, ...]:
        """The objectives, each with the limits."""
        return tuple(ConstrainedObjective(objective, self.limits) for objective in self.objectives)

    def wait_until_idle(self) -> None:
        """Wait until the machine is idle, at most `patience_s`."""
        wait_until_idle(self.runner.watch, self.patience_s, self.progress)

    def start_progress(self, problem: Problem, space: SearchSpace) -> None:
        """Report that a search starts."""
        total = len(space) if self.stopping.measurements is None else self.stopping.measurements
        self.progress.start(f"tuning {problem.shown}", min(total, len(space)))

    def known(self, problem: Problem, space: SearchSpace) -> list[Measurement]:
        """Return stored measurements that have every column the objectives and limits need."""
        stored = self.cache.known(problem)
        return [m for m in stored if m.config in space and self._is_complete(m)]

    def find_predictor(self, source: PredictorSource) -> Guide | None:
        """Return the guide that ``source`` names, for searches of this job.

        Raises PredictorError, TrackingError, UsageError if it cannot be used.
        """
        if isinstance(source, str) and source in registered("predictors"):
            predictor = load("predictors", source)(self.kernel)
            return make_guide(predictor, self.device)
        power = any(objective.needs_power for objective in self.objectives)
        kernel = self.kernel.name
        code = self.kernel.source_hash
        request = PredictorRequest(kernel, code, self.device, power)
        return find_guide(source, request, self.progress.say)

    def prior(
        self,
        problem: Problem,
        space: SearchSpace,
        guide: Guide | None,
        objective: Objective,
    ) -> Prior | None:
        """Return the predictions of ``guide`` for a problem's space; None without a guide.

        If a target or a column is missing, a shipped predictor causes a warning, another an error.
        """
        if guide is None:
            return None
        try:
            return prior_from_guide(guide, problem, space, objective, limits=self.limits)
        except PredictorError as e:
            if not guide.shipped:
                raise
            warn(f"the shipped predictor is not used: {e}")
            return None

    def search(
        self,
        searcher: AskTell[C],
        measure: Callable[[tuple[C, ...]], Iterable[Measurement]],
        known: Sequence[Measurement] = (),
    ) -> SearchResult:
        """Run a search to its end; ``measure`` returns one measurement per proposal."""
        parallel = min(self.runner.parallelism, MAX_PARALLEL)
        loop = search(searcher, self.stopping, known=known, parallel=parallel, clock=monotonic)
        return run(loop, measure)

    def measure(
        self, work: Iterable[tuple[Problem, Configuration]], incumbent_ms: float = math.inf
    ) -> Iterator[Measurement]:
        """Yield one measurement per problem and configuration, stored ones first.

        Raises UsageError if the kernel's measurements lack the column of a limit.
        """
        missing = []
        for problem, config in work:
            stored = self.cache.find(problem, config)
            if stored is not None and self._is_complete(stored):
                yield stored
            else:
                missing.append((problem, config))

        for measurement in self.runner.run_many(self.kernel, missing, incumbent_ms):
            self.cache.append(measurement)
            self._check_limited_columns(measurement)
            yield measurement

    def _check_limited_columns(self, measurement: Measurement) -> None:
        """Raise UsageError if a measurement lacks the column of a limit.

        A meter may miss a run. Any other column is always there, or never.
        """
        if not measurement.ok:
            return
        for limit in self.limits:
            if not limit.needs_power and math.isnan(limit.value_of(measurement)):
                raise UsageError(
                    f"limit {limit}: measurements of {self.kernel.name} have no "
                    f"{limit.column}; they have {', '.join(limitable_columns_of(measurement))}"
                )

    def no_feasible_error(self, measured: int, default_breaks: str) -> MeasurementError:
        """Return the error for a search without any configuration within the limits."""
        listed = ", ".join(map(str, self.limits))
        return MeasurementError(
            f"none of {measured} measured configurations is within {listed}, nor is the default "
            f"({default_breaks}): raise the limit or --budget"
        )

    def _is_complete(self, measurement: Measurement) -> bool:
        return all(goal.is_known(measurement) for goal in self.constrained_objectives)
