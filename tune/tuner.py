"""The tuner: predict every configuration of a problem, measure a few, verify the best."""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np

from foretune.collect import Runner
from foretune.collect.timer import median_interval
from foretune.datasets import RunLog
from foretune.device import Device
from foretune.errors import ForetuneError, UsageError
from foretune.kernel import Kernel
from foretune.limit import Limit, Limited, broken_limits
from foretune.measurement import Measurement
from foretune.models.saved.guide import Guide
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.registry import load, registered
from foretune.search import make_searcher
from foretune.search.factory import searcher_name
from foretune.search.searcher import Prior, Searcher
from foretune.search.stopping import Stopping
from foretune.space import Configuration
from foretune.tune.guiding import CORRECTED, corrected, guide_for, prior_for
from foretune.tune.record import StoredRecord
from foretune.tune.results import Step, TuneResult, status_of
from foretune.tune.session import Session, stopping_of
from foretune.tune.store.optional import Where
from foretune.tune.store.subject import Choice
from foretune.tune.verify import verify

if TYPE_CHECKING:
    from foretune.models.saved.named import Named
    from foretune.search.factory import SearcherKind

FINALISTS = 3
LIMIT_RUNS = 3
"""Fresh runs of a finalist whose medians must keep to the limits."""


def tune_problem(
    kernel: Kernel,
    problem: Problem,
    runner: Runner,
    predictor: "Named" = None,
    *,
    budget: int | Literal["auto"] | None = None,
    regret: float | None = None,
    seconds: float | None = None,
    objective: Objective = Objective.TIME,
    limits: Sequence[Limit] = (),
    searcher: "SearcherKind" = "surrogate",
    seed: int = 0,
    store: Where = None,
    log: RunLog | None = None,
    verify_s: float = 2.0,
    patience_s: float = 0.0,
    progress: Progress = SILENT,
) -> TuneResult:
    """Search the configurations of ``problem`` with ``budget`` measurements and verify the best.

    What the store knows of the same kernel code and device is not measured again: the search
    begins with it. A problem that was tuned with as large a budget is only verified.

    Args:
        kernel: what is tuned.
        problem: for what.
        runner: measures; its device is the one tuned for.
        predictor: predicts every configuration first: an object or a name
            (`foretune.models.saved.named`); None starts from nothing. One of another device or
            other code is checked and corrected by what is measured.
        budget: new measurements of the search; the verification comes on top. ``"auto"`` measures
            until ``regret`` is reached, or one more measurement is not worth it. None is 10, or
            what ``seconds`` allow.
        regret: stop where the best known is expected to be no slower than the optimum by this
            share, e.g. 0.03; None with a number as ``budget``: use it up.
        seconds: wall time of the search at most, builds and slow configurations counted; what is
            under way then is finished. Improvement then counts by the second that it costs.
        objective: what is minimised.
        limits: what breaks one of them failed, to the search, and never wins; the run table has it
            as it was measured.
        searcher: registered name, `Searcher` class, or a sampler of Optuna.
        seed: of the searcher.
        store: where everybody finds measurements and the choice: a `Store`, its path or URL; None
            is the user's own, False none.
        log: measurements go there, too, and those it has already are not made again.
        verify_s: seconds of interleaved comparison.
        patience_s: how long to wait, before the search and before the comparison, for a machine
            that does nothing else.
        progress: told about every measurement.

    Raises:
        MeterUnavailable: objective or limits need power, which this machine cannot measure.
        MeasurementError: no configuration runs, not even the default, or none within the limits.
        PredictorError, TrackingError: there is no such predictor, it is of another kernel or has
            not learned power.
        UsageError: a limit is on something that runs of this kernel do not say; or ``regret``
            needs a searcher that can tell it.
    """
    session = Session(
        kernel, runner, StoredRecord(kernel, runner.device, store, log), (objective,),
        tuple(limits), searcher, stopping_of(budget, regret, seconds), seed, progress, patience_s,
    )  # fmt: skip
    return tune_one(session, problem, guide_for(session, predictor), verify_s)


def tune_one(
    session: Session, problem: Problem, guide: Guide | None, verify_s: float
) -> TuneResult:
    """Tune one problem of a session; see `tune_problem`.

    Args:
        session: what is at hand; its first objective counts.
        problem: what is tuned.
        guide: predicts every configuration, if there is one.
        verify_s: seconds of interleaved comparison.
    """
    start = time.perf_counter()
    session.wait_until_quiet()
    kernel, device, goal = session.kernel, session.device, session.goals[0]
    stood = session.record.choice(problem, goal)
    elsewhere = session.record.elsewhere(problem)
    if guide is not None:
        guide = corrected(guide, elsewhere, device)
    prior = prior_for(session, problem, kernel.space(problem), guide, goal.objective)
    search = _searcher(session, problem, prior, goal, elsewhere)
    if prior is None:
        guide = None
    trace = _search(session, problem, search, guide, stood)
    return conclude(session, problem, search, trace, stood, verify_s, start)


def conclude(
    session: Session,
    problem: Problem,
    search: Searcher,
    trace: Sequence[Step],
    stood: Choice | None,
    verify_s: float,
    start: float,
) -> TuneResult:
    """Verify the best of a search and keep the choice.

    Args:
        session: what is at hand.
        problem: what was searched for.
        search: it was told of everything.
        trace: of the search.
        stood: the choice before, if any.
        verify_s: seconds of interleaved comparison.
        start: when it began, by `time.perf_counter`.

    Raises:
        MeasurementError: no configuration runs, not even the default, or none within the limits.
    """
    kernel, device, goal = session.kernel, session.device, session.goals[0]
    first = None if stood is None else stood.config
    worked = sorted(_worked(trace), key=lambda config: config != first)

    def breaks(config: Configuration) -> str:
        runs = session.runner.run(kernel, problem, [config] * LIMIT_RUNS) if goal.limits else ()
        return broken_limits(goal.limits, list(runs))

    within = (config for config in worked if not breaks(config))
    default = kernel.default(problem)
    finalists, default_breaks = list(islice(within, FINALISTS)), breaks(default)
    session.wait_until_quiet()
    contenders, rounds, steady = verify(session, problem, finalists, verify_s)
    result = TuneResult(
        kernel=kernel.name,
        problem=problem,
        device=device.name,
        objective=goal.objective,
        searcher=searcher_name(session.searcher),
        trace=tuple(trace),
        contenders=tuple(contenders),
        rounds=rounds,
        seconds=time.perf_counter() - start,
        limits=goal.limits,
        default_breaks=default_breaks,
        steadiness=steady,
    )
    if default_breaks and not result.won:
        raise session.none_within(len(trace), default_breaks)
    regret = search.regret()
    choice = Choice(
        result.winner.config or default, len(search.told),
        regret if math.isfinite(regret) else math.nan,
        "measured" if result.unstable else "verified",
    )  # fmt: skip
    session.record.choose(problem, goal, choice, stood)
    return result


def _searcher(
    session: Session,
    problem: Problem,
    prior: Prior | None,
    goal: Limited,
    elsewhere: Sequence[Measurement],
) -> Searcher:
    space, device = session.kernel.space(problem), session.device
    searcher = make_searcher(
        session.searcher, space, goal, session.seed, prior, problem, device, elsewhere
    )  # fmt: skip
    if session.stopping.regret is not None and type(searcher).regret is Searcher.regret:
        raise UsageError(
            f"searcher {searcher_name(session.searcher)!r} cannot tell its regret: give --budget a "
            f"number and no --regret, or --searcher {' or '.join(_who_tell_regret())}"
        )
    return searcher


def _who_tell_regret() -> list[str]:
    """Return the names of searchers that know how far off they may be."""
    found = []
    for name in registered("searchers"):
        with suppress(ForetuneError):  # that one needs what is not installed
            if getattr(load("searchers", name), "regret", Searcher.regret) is not Searcher.regret:
                found.append(name)
    return found


def _search(
    session: Session,
    problem: Problem,
    search: Searcher,
    guide: Guide | None,
    stood: Choice | None,
) -> list[Step]:
    """Return what was known and what is measured, after ``search`` was told of both."""
    goal, unit, stopping = session.goals[0], session.goals[0].objective.unit, session.stopping
    session.start(problem, search.space)
    told = session.known(problem, search.space)
    search.tell(told)
    trace = [step_of(m, goal, None, session.device, known=True) for m in told]
    here = [m for m in told if m.ok]
    incumbent = next((m for m in told if m.config == search.best()), None)
    measured, begun = 0, session.clock()
    done = stood is not None and _suffices(stood, stopping)
    while not (done or stopping.is_over(search, measured, session.clock() - begun)):
        asked_at = session.clock()
        if not (asked := search.ask(session.batch(measured))):
            break
        for measurement in session.measure(problem, asked, _upper_bound_ms(incumbent)):
            measured += 1
            search.tell([measurement])
            if stopping.seconds is not None:
                search.took({measurement.config: session.clock() - asked_at})
            trace.append(step_of(measurement, goal, guide, session.device))
            here += [measurement] if measurement.ok else []
            if guide is not None and measurement.ok and len(here) in CORRECTED:
                guide = corrected(guide, here, session.device)
            if measurement.config == search.best():
                incumbent = measurement
            best = min(s.objective for s in trace)
            session.progress.advance(f"best {best:.3g} {unit}" if best < math.inf else "")
    if told:
        news = f"{measured} new" if measured else "nothing new is measured"
        session.progress.say(f"{problem}: {len(told)} measurements known from the store, {news}")
    return trace


def _suffices(choice: Choice, stopping: Stopping) -> bool:
    """Whether a choice made before rests on as much as is asked for now."""
    spent = stopping.most is not None and choice.measured >= stopping.most
    return spent or (stopping.regret is not None and choice.regret <= stopping.regret)


def _upper_bound_ms(incumbent: Measurement | None) -> float:
    if incumbent is None or not incumbent.time_ms_samples:
        return math.inf
    return median_interval(np.array(incumbent.time_ms_samples))[1]


def step_of(
    m: Measurement, goal: Limited, guide: Guide | None, device: Device, known: bool = False
) -> Step:
    """Return a measurement as a step of a search, with what ``guide`` predicted of it."""
    predicted = {}
    if guide is not None:
        row = guide.predictor.predict_one(m.problem, m.config, device)
        predicted = {"predicted_ms": row["time_ms"]}
        if guide.promises(device):
            predicted |= {"low_ms": row["time_ms_low"], "high_ms": row["time_ms_high"]}
    status = status_of(m, goal.limits)
    objective = goal.measured(m)
    return Step(m.config, status, m.time_ms, m.power_w, objective, known=known, **predicted)


def _worked(trace: Sequence[Step]) -> list[Configuration]:
    """Return what ran within the limits, the best first."""
    worked = [s for s in trace if math.isfinite(s.objective)]
    return [s.config for s in sorted(worked, key=lambda s: s.objective)]
