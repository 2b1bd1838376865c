"""Searches without a kernel: minimize any function of a configuration."""

import contextlib
import math
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from foretune.collect.wrapped.knob_values import KnobValues
from foretune.device import Device
from foretune.errors import ForetuneError, UsageError
from foretune.measurement import Measurement, Status
from foretune.objective import Objective, Scalarization
from foretune.problem import Problem
from foretune.search.any_sign import AnySignSearcher
from foretune.search.factory import make_searcher, require_regret_estimate, searcher_name
from foretune.search.loop import SearchLoop, SearchResult, run, run_concurrently, search
from foretune.search.searcher import Prior, Searcher
from foretune.search.stopping import make_stopping
from foretune.space import Configuration, SearchSpace
from foretune.values import Value

if TYPE_CHECKING:
    import pandas as pd

    from foretune.models.saved.lookup import PredictorSource
    from foretune.search.factory import SearcherKind


@dataclass(frozen=True, eq=False, repr=False)
class SearchOutcome(SearchResult):
    """The result of a search.

    ``best`` may be a known configuration; None if none ran, and ``best_value``, its objective, is
    then infinite. It has the values as they were listed. ``trace`` has the new measurements in the
    order in which they finished, with texts for values that a run table cannot store.
    """

    best: Mapping[str, Any] | None
    best_value: float
    trace: tuple[Measurement, ...]

    @property
    def headline(self) -> str:
        """The best configuration and its value."""
        return f"{dict(self.best or {})}: {self.best_value:.4g}, after {self.measured} measurements"

    def to_frame(self) -> "pd.DataFrame":
        """Return the trace, one row per measurement."""
        import pandas as pd

        rows = [{**m.config, "status": m.status.value, "value": m.time_ms} for m in self.trace]
        return pd.DataFrame(rows)


def run_search(
    searcher: "SearcherKind | Searcher",
    space: SearchSpace | Mapping[str, Sequence[Any]],
    measure: Callable[[Any], Measurement | float],
    *,
    budget: int | Literal["auto"] | None = None,
    seconds: float | None = None,
    regret: float | None = None,
    objective: Scalarization = Objective.TIME,
    seed: int = 0,
    known: Sequence[Measurement] = (),
    first: Sequence[Mapping[str, Any]] = (),
    parallel: int = 1,
    predictor: "PredictorSource" = None,
    problem: Mapping[str, Value] = {},
    device: Device | None = None,
) -> SearchOutcome:
    """Minimize what ``measure`` returns over a search space.

    Use it for anything that you can run and time. `foretune.tune_function` also isolates each
    configuration, checks its output and verifies the winner.

    Args:
        searcher: a registered name, for example "surrogate"; a `Searcher` or its class; or an
            Optuna sampler.
        space: a search space, or the values of each parameter, which may be of any kind that has a
            name: also None, tuples, members of enums, functions and classes.
        measure: returns a number of any sign, which is minimized, or a `Measurement`. NaN, infinity
            and any `ForetuneError` mean that the configuration failed.
        budget: maximum number of measurements; "auto" stops at a small expected regret. The default
            is 10, or no limit if ``seconds`` is given.
        seconds: wall time after which no measurement is started.
        regret: expected regret at which the search stops, for example 0.03 for 3 %.
        objective: computes the minimized value of a `Measurement`; a plain number is a time.
        seed: seed of the searcher.
        known: earlier measurements; they are not repeated and do not count.
        first: configurations to measure first, for example the default.
        parallel: maximum number of measurements at the same time; above 1, each in a thread.
        predictor: guides the search: a `Predictor`, a fitted scikit-learn estimator, a function, or
            a name (`foretune.models.saved.lookup`).
        problem: the problem to tune, for ``predictor``.
        device: the device to tune for, for ``predictor``.

    Raises:
        PredictorError: ``predictor`` cannot predict the space.
        UsageError: an argument is invalid, or ``measure`` returns something else than a number.
        SpaceError: a configuration in ``first`` or ``known`` is not in the space.
        UnknownName: there is no searcher of this name.
    """
    values = None
    if not isinstance(space, SearchSpace):
        values = KnobValues(space)
        space = SearchSpace(values.listed)
        first = [values.encode(config) for config in first]
    if parallel < 1:
        raise UsageError(f"{parallel} measurements at the same time: give 1 or more")
    stopping = make_stopping(budget, regret, seconds)
    if isinstance(searcher, Searcher):
        if predictor is not None:
            raise UsageError("a searcher gets its prior when made: give its name or its class")
        any_sign = AnySignSearcher(searcher, objective)
    else:
        prior = _read_prior(predictor, problem, space, objective, device)
        make = partial(
            make_searcher,
            searcher,
            space,
            objective=objective,
            seed=seed,
            prior=prior,
            problem=Problem(problem),
            device=device,
        )
        any_sign = AnySignSearcher(make(), objective, make)
        if regret is not None or budget == "auto":
            require_regret_estimate(any_sign.searcher, searcher_name(searcher))

    # What is known need not be measured first.
    done = {m.config for m in known}
    start = dict.fromkeys(space[space.index(config)] for config in first)
    new = [config for config in start if config not in done]

    trace: list[Measurement] = []

    def measure_one(config: Configuration) -> Measurement:
        given = config if values is None else values.decode_configuration(config)
        measured = _measure(measure, config, given)
        trace.append(measured)
        return measured

    loop = search(any_sign, stopping, known=known, first=new, parallel=parallel)
    result = _drive(loop, measure_one, parallel)
    best = any_sign.best()
    return SearchOutcome(
        measured=result.measured,
        reason=result.reason,
        regret=result.regret,
        best=best if best is None or values is None else values.decode_configuration(best),
        best_value=math.inf if best is None else any_sign.values[space.index(best)],
        trace=tuple(trace),
    )


def _read_prior(
    predictor: "PredictorSource",
    problem: Mapping[str, Value],
    space: SearchSpace,
    objective: Scalarization,
    device: Device | None,
) -> Prior | None:
    if predictor is None:
        return None
    from foretune.models.guides.guide import ANY_DEVICE, make_guide
    from foretune.models.saved.lookup import read_model
    from foretune.search.prior import prior_from_guide

    base = objective if isinstance(objective, Objective) else Objective.TIME
    guide = make_guide(read_model(predictor), device or ANY_DEVICE)
    return prior_from_guide(guide, Problem(problem), space, base)


def _drive(
    loop: SearchLoop[Configuration], measure: Callable[[Configuration], Measurement], parallel: int
) -> SearchResult:
    if parallel == 1:  # in this thread, as database connections and some drivers need it
        return run(loop, lambda configs: map(measure, configs))
    finished: queue.SimpleQueue[Future[Measurement]] = queue.SimpleQueue()
    with ThreadPoolExecutor(parallel) as pool:
        return run_concurrently(
            loop,
            lambda config: pool.submit(measure, config).add_done_callback(finished.put),
            lambda: finished.get().result(),
        )


def _measure(
    measure: Callable[[Any], Measurement | float], config: Configuration, given: Mapping[str, Any]
) -> Measurement:
    """Measure ``config``; ``given`` is what the user's function gets."""
    name = getattr(measure, "__name__", type(measure).__name__)
    try:
        measured = measure(given)
    except ForetuneError as e:
        return _failure(name, config, str(e))
    if isinstance(measured, Measurement):
        return measured
    value = _as_number(measured, f"{name} returned {measured!r} for {config}")
    if not math.isfinite(value):
        return _failure(name, config, f"{name} returned {value}")
    return Measurement(name, Problem(), config, "", Status.OK, time_ms=value)


def _as_number(value: Any, returned: str) -> float:
    """Return a number; UsageError for anything else, also for text that looks like a number."""
    if not isinstance(value, str | bytes):
        with contextlib.suppress(TypeError, ValueError):
            return float(value)
    raise UsageError(f"{returned}: return a number")


def _failure(name: str, config: Configuration, reason: str) -> Measurement:
    return Measurement(name, Problem(), config, "", Status.RUNTIME_ERROR, error=reason)
