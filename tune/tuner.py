"""The tuner: predict every configuration of a problem, measure a few, verify the best."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self, Unpack

import numpy as np

from foretune.collect.machine_load import OBSERVE_S
from foretune.collect.runner import Runner
from foretune.collect.timing import median_interval
from foretune.datasets.run_log import RunLog
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.models.guides.guide import Guide
from foretune.models.saved.lookup import PredictorSource
from foretune.objective import ConstrainedObjective, Objective, violated_limits
from foretune.problem import Problem
from foretune.search.factory import make_searcher, require_regret_estimate, searcher_name
from foretune.search.prior import CORRECTION_COUNTS, correct_predictor
from foretune.search.searcher import Searcher
from foretune.search.stopping import Stopping
from foretune.space import Configuration
from foretune.tune.job import SearchOptions, TuningJob
from foretune.tune.results import SearchStep, TuneResult, step_status
from foretune.tune.store.subject import Allowance, Choice
from foretune.tune.verification import StoredVerification
from foretune.tune.verifier import MIN_VERIFY_S, verify
from foretune.values import counted, short_number

FINALISTS = 5
"""Number of the fastest measured candidates that are compared with the default, and with each
other, in the same rounds; see docs/decisions/finalists.md."""
LIMIT_CHECK_RUNS = 3
"""New runs of a finalist whose medians must satisfy the limits."""


def tune_problem(
    kernel: Kernel,
    problem: Problem,
    runner: Runner,
    predictor: PredictorSource = None,
    *,
    objective: Objective = Objective.TIME,
    log: RunLog | None = None,
    verify_s: float | None = None,
    verify_again: bool = False,
    **options: Unpack[SearchOptions],
) -> TuneResult:
    """Search the configurations of ``problem`` with ``budget`` measurements and verify the best.

    Stored measurements of the same kernel code and device are reused. For a problem that was tuned
    with the same or a larger budget, nothing is measured, and the stored result is returned.

    Args:
        kernel: the kernel.
        problem: the problem.
        runner: measures configurations; its device is the one to tune for.
        predictor: gives the prior: any model or a name (`foretune.models.saved.lookup`); by default
            none. A predictor of another device or other code, or a model of yours, is checked and
            corrected by measurements.
        objective: the minimized objective.
        log: also gets the measurements; those that it already has are not repeated.
        verify_s: maximum seconds of the verification; by default as long as the search took, and at
            least 5. It ends earlier if the winner is clear, and takes up to twice as long if five
            processes do not fit in.
        verify_again: verify a winner again although nothing has changed since.
        options: budget, searcher, store and so on, see `SearchOptions`.

    Raises:
        MeterUnavailable: objective or limits need power, which this machine cannot measure.
        MeasurementError: no configuration runs, not even the default, or none within the limits.
        PredictorError, TrackingError: there is no such predictor, or it is of another kernel, has
            not learned power or predicts nothing in the space.
        UsageError: measurements lack the column of a limit, or ``regret`` needs another searcher.
    """
    job = TuningJob.from_options(kernel, runner, options, objective, log=log)
    guide = job.find_predictor(predictor)
    return tune_one(job, problem, guide, verify_s, verify_again=verify_again)


def tune_one(
    job: TuningJob,
    problem: Problem,
    guide: Guide | None,
    verify_s: float | None = None,
    *,
    verify_again: bool = False,
) -> TuneResult:
    """Tune one problem of a job for its first objective; see `tune_problem`.

    Its steps: read what earlier searches left, make the searcher, search with what is left of the
    budget, verify the best, store the choice.
    """
    start = time.perf_counter()
    job.wait_until_idle()
    search_start = time.perf_counter()  # waiting is not a part of the search
    earlier = _EarlierSearches.of_problem(job, problem)

    # The searcher starts from the guide's predictions and from other problems' measurements.
    searcher, guide_of_prior = _make_searcher(job, problem, guide)

    # Stored measurements of this problem are reused. They count against the budget only if the
    # search that made them was interrupted. After a finished search that was as thorough, nothing
    # is measured.
    trace = _Trace(job, job.known(problem, searcher.space), guide_of_prior)
    spent_before = earlier.spent_by_interrupted_runs(n_stored=len(trace.stored))
    remaining = _remaining_stopping(
        job.stopping,
        allowance=job.allowance,
        previous_choice=earlier.previous_choice,
        spent_before=spent_before,
        n_stored=len(trace.stored),
        space_size=len(searcher.space),
    )
    remaining_job = job.with_remaining_budget(remaining)

    try:
        # Measure until the budget is spent, then compare the best with the default.
        _search(remaining_job, problem, searcher, trace)
        verification_options = VerificationOptions(
            seconds=verify_s,
            search_s=time.perf_counter() - search_start,
            again=verify_again,
        )
        return verify_and_store(
            remaining_job,
            problem,
            searcher,
            trace=trace.steps,
            previous_choice=earlier.previous_choice,
            verification_options=verification_options,
            start=start,
        )
    except BaseException as error:
        # The next run of this problem continues where this one ended.
        spent = spent_before + trace.new_count
        if trace.new_count:
            _store_unfinished(job, problem, trace, earlier, spent)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(_interruption_message(job, spent)) from None
        raise


@dataclass(frozen=True)
class _EarlierSearches:
    """What earlier searches of a problem left in the store.

    Attributes:
        previous_choice: the choice of the last search that came to its end; None if there is none.
        unfinished: the record of runs that were interrupted. Its ``measured`` continues the count
            of ``previous_choice``: 50 after a choice with 40 means that interrupted runs have made
            10 measurements since. A record that does not exceed it is older than the choice.
    """

    previous_choice: Choice | None
    unfinished: Choice | None

    @classmethod
    def of_problem(cls, job: TuningJob, problem: Problem) -> Self:
        objective = job.constrained_objectives[0]
        return cls(
            previous_choice=job.cache.choice(problem, objective),
            unfinished=job.cache.choice(problem, objective, unfinished=True),
        )

    @property
    def previous_measured(self) -> int:
        """The number of measurements on which the previous choice rests; 0 without one."""
        return 0 if self.previous_choice is None else self.previous_choice.measured

    def spent_by_interrupted_runs(self, *, n_stored: int) -> int:
        """Return how many measurements interrupted runs have made since the previous choice.

        At most ``n_stored``, the number of measurements that are in the store: it may have lost
        some.
        """
        if self.unfinished is None:
            return 0
        since_choice = max(0, self.unfinished.measured - self.previous_measured)
        return min(since_choice, n_stored)


def _make_searcher(
    job: TuningJob, problem: Problem, guide: Guide | None
) -> tuple[Searcher, Guide | None]:
    """Return the searcher of a problem, and the corrected guide; None if it gives no prior."""
    objective = job.constrained_objectives[0]
    space = job.kernel.space(problem)

    # Measurements of other problems correct the guide. The searcher gets only those that the guide
    # was not trained on: it errs less on the others, and would be trusted too much.
    other_measurements = job.cache.known_for_other_problems(problem)
    if guide is not None:
        guide = correct_predictor(guide, other_measurements, job.device)
        other_measurements = guide.not_trained_on(other_measurements)

    prior = job.prior(problem, space, guide, objective.objective)
    searcher = make_searcher(
        job.searcher,
        space,
        objective=objective,
        seed=job.seed,
        prior=prior,
        problem=problem,
        device=job.device,
        other_measurements=other_measurements,
    )
    if job.stopping.regret is not None:
        require_regret_estimate(searcher, searcher_name(job.searcher))

    guide_of_prior = guide if prior is not None else None
    return searcher, guide_of_prior


def _remaining_stopping(
    stopping: Stopping,
    *,
    allowance: Allowance,
    previous_choice: Choice | None,
    spent_before: int,
    n_stored: int,
    space_size: int,
) -> Stopping:
    """Return what earlier searches of the problem leave for this one.

    Args:
        stopping: when this search stops. It may be less than the user allowed, because the caller
            has measured something already.
        allowance: what the user allowed.
        previous_choice: the choice of the last finished search.
        spent_before: measurements of interrupted runs since that choice.
        n_stored: measurements of earlier searches that are still in the store.
        space_size: number of configurations.
    """
    # A finished search was at least as thorough: nothing is measured. If the store has lost the
    # measurements, its choice proves nothing, so search again.
    was_thorough = previous_choice is not None and was_as_thorough(
        previous_choice, allowance, space_size
    )
    if was_thorough and n_stored:
        return Stopping(measurements=0)

    # An interrupted search goes on with what is left.
    if stopping.measurements is None:
        return stopping
    return replace(stopping, measurements=max(0, stopping.measurements - spent_before))


def was_as_thorough(choice: Choice, allowance: Allowance, space_size: int) -> bool:
    """Return whether the search of a choice did all that a search with ``allowance`` may do.

    One that was cut short goes on with a larger allowance.
    """
    # It measured the whole space, or as many configurations as are allowed.
    enough = space_size
    if allowance.measurements is not None:
        enough = min(space_size, allowance.measurements)
    if choice.measured >= enough:
        return True

    # Its expected regret is accepted.
    if allowance.regret is not None and choice.regret <= allowance.regret:
        return True

    # It was allowed at least as much.
    return choice.allowed is not None and choice.allowed.covers(allowance)


def _store_unfinished(
    job: TuningJob,
    problem: Problem,
    trace: "_Trace",
    earlier: _EarlierSearches,
    spent: int,
) -> None:
    """Store that interrupted runs have made ``spent`` measurements since the previous choice."""
    incumbent = trace.incumbent
    best = job.kernel.default(problem) if incumbent is None else incumbent.config
    progress_so_far = Choice(
        config=best, measured=earlier.previous_measured + spent, regret=math.nan, how="measured"
    )
    objective = job.constrained_objectives[0]
    job.cache.choose(
        problem, objective, progress_so_far, replacing=earlier.unfinished, unfinished=True
    )


def _interruption_message(job: TuningJob, spent: int) -> str:
    """Return what a user reads after Ctrl-C.

    ``spent`` counts the measurements of this run, and of earlier runs that were interrupted.
    """
    fate = "kept; run the same again to go on" if job.cache.is_kept else "not kept"
    return f"interrupted after {counted(spent, 'measurement')} of this search: {fate}"


@dataclass(frozen=True)
class VerificationOptions:
    """How to verify.

    Attributes:
        seconds: maximum duration; None is as long as the search took.
        search_s: seconds that the search took, without waiting for an idle machine.
        again: verify even if the same measurements were verified before.
    """

    seconds: float | None = None
    search_s: float = 0.0
    again: bool = False

    @property
    def budget_s(self) -> float:
        """The maximum duration of the verification."""
        if self.seconds is not None:
            return self.seconds
        return max(MIN_VERIFY_S, self.search_s)


def verify_and_store(
    job: TuningJob,
    problem: Problem,
    searcher: Searcher,
    *,
    trace: Sequence[SearchStep],
    previous_choice: Choice | None,
    verification_options: VerificationOptions,
    start: float,
) -> TuneResult:
    """Verify the best of a search and store it.

    With the same measurements as before, the stored verification counts. ``start`` is when the
    tuning began, by `time.perf_counter`.
    """
    # Compare with the default, or take the comparison from the store.
    verification = _reusable_verification(
        job, problem, trace, previous_choice, verification_options
    )
    reused_because = ""
    if verification is not None and previous_choice is not None:
        reused_because = _reason_to_reuse(job, trace, previous_choice, verification)
        job.progress.say(f"{problem.shown}: verified before, with the same measurements")
    else:
        verification = _verify(
            job, problem, trace, previous_choice, seconds=verification_options.budget_s
        )

    result = replace(
        _tune_result(job, problem, trace, verification, start), reused_because=reused_because
    )
    not_confirmed = _not_confirmed(job, problem, previous_choice, result)
    if not_confirmed:
        result = replace(result, not_confirmed=not_confirmed)
        job.progress.say(not_confirmed)

    # The default breaks the limits, and nothing within them was found: there is no result.
    if result.default_breaks and not result.verified:
        raise job.no_feasible_error(len(trace), result.default_breaks)

    # Store the winner, and how thorough the search was: all that was observed counts, whichever
    # search measured it.
    regret = searcher.expected_regret()
    n_observed = len(searcher.observed)
    choice = Choice(
        config=result.winner.config or job.kernel.default(problem),
        measured=n_observed,
        regret=regret if math.isfinite(regret) else math.nan,
        how="measured" if result.verdict == "inconclusive" else "verified",
        allowed=_most_generous(job.allowance, previous_choice),
        verification=verification.to_record(),
    )
    objective = job.constrained_objectives[0]
    job.cache.choose(problem, objective, choice, replacing=previous_choice)
    return result


def _reusable_verification(
    job: TuningJob,
    problem: Problem,
    trace: Sequence[SearchStep],
    previous_choice: Choice | None,
    verification_options: VerificationOptions,
) -> StoredVerification | None:
    """Return the earlier verification if nothing has changed since; else None.

    Other code, another device and other versions have other choices.
    """
    if previous_choice is None or verification_options.again:
        return None

    # A new measurement may have found another winner.
    if any(not step.known for step in trace):
        return None

    verification = StoredVerification.from_record(previous_choice.verification)
    if verification is None:
        return None

    # It compared with this default, and its winner is still known.
    default = job.kernel.default(problem)
    known_configs = {default, *(step.config for step in trace)}
    if verification.contenders[0].config != default or previous_choice.config not in known_configs:
        return None

    # A win on a busy machine is verified again as soon as the machine is quiet.
    if verification.needs_quiet_machine and _is_quiet(job):
        return None

    # One that ended without a verdict is repeated only if the user allows more time.
    requested_s = 0.0 if verification_options.seconds is None else verification_options.seconds
    if verification.is_decided or verification.allowed_s >= requested_s:
        return verification
    return None


def _reason_to_reuse(
    job: TuningJob,
    trace: Sequence[SearchStep],
    previous_choice: Choice,
    verification: StoredVerification,
) -> str:
    """Return in words why the stored comparison counts."""
    when = f" of {previous_choice.chosen_at[:16]}" if previous_choice.chosen_at else ""
    return (
        f"the comparison{when} counts, because code ({job.kernel.source_hash[:8]}), device, "
        f"versions, default and all {counted(len(trace), 'measurement')} are the same; it took "
        f"{counted(verification.processes, 'process')}"
    )


def _not_confirmed(
    job: TuningJob, problem: Problem, previous_choice: Choice | None, result: TuneResult
) -> str:
    """Return that an earlier verified winner is not the winner now; empty if it is, or none was."""
    if previous_choice is None or previous_choice.how != "verified":
        return ""
    earlier_winner = previous_choice.config
    if earlier_winner in (job.kernel.default(problem), result.winner.config):
        return ""
    now = "the default stays" if not result.verified else "another one is faster"
    config = ", ".join(f"{name}={value}" for name, value in earlier_winner.items())
    return f"the earlier winner, {config}, is not confirmed ({result.explanation}): {now}"


def _is_quiet(job: TuningJob) -> bool:
    """Observe the measuring machine for a moment; return whether other load leaves it alone."""
    with job.runner.watch() as monitor:
        time.sleep(OBSERVE_S)
    return not monitor.load.disturbance


def _verify(
    job: TuningJob,
    problem: Problem,
    trace: Sequence[SearchStep],
    previous_choice: Choice | None,
    *,
    seconds: float,
) -> StoredVerification:
    """Choose the finalists and compare them with the default, for at most ``seconds``."""
    # Limits are of times and power, so a busy machine would spoil their checks, too.
    job.wait_until_idle()
    ordered = _finalist_order(job, problem, trace, previous_choice)
    finalists = _measure_finalists(job, problem, ordered)
    default_violations = _measure_broken_limits(job, problem, job.kernel.default(problem))

    outcome = verify(
        job, problem, finalists, seconds, default_breaks_limits=bool(default_violations)
    )
    return StoredVerification(
        contenders=tuple(outcome.contenders),
        processes=len(outcome.evidence),
        rounds=outcome.evidence.rounds,
        noise=outcome.noise,
        checked_on=outcome.checked_on,
        default_breaks=default_violations,
        allowed_s=seconds,
    )


def _tune_result(
    job: TuningJob,
    problem: Problem,
    trace: Sequence[SearchStep],
    verification: StoredVerification,
    start: float,
) -> TuneResult:
    objective = job.constrained_objectives[0]
    return TuneResult(
        kernel=job.kernel.name,
        problem=problem,
        device=job.device.name,
        objective=objective.objective,
        searcher=searcher_name(job.searcher),
        trace=tuple(trace),
        contenders=verification.contenders,
        processes=verification.processes,
        rounds=verification.rounds,
        seconds=time.perf_counter() - start,
        limits=objective.limits,
        default_breaks=verification.default_breaks,
        noise=verification.noise,
        checked_on=verification.checked_on,
    )


def _most_generous(allowance: Allowance, previous_choice: Choice | None) -> Allowance:
    """Return what this search was allowed, or an earlier one of its problem that covers it."""
    earlier_allowance = None if previous_choice is None else previous_choice.allowed
    if earlier_allowance is not None and earlier_allowance.covers(allowance):
        return earlier_allowance
    return allowance


def _finalist_order(
    job: TuningJob,
    problem: Problem,
    trace: Sequence[SearchStep],
    previous_choice: Choice | None,
) -> list[Configuration]:
    """Return the measured configurations within the limits: an earlier choice, then the fastest."""
    previous_config = None if previous_choice is None else previous_choice.config
    feasible = [step for step in trace if math.isfinite(step.objective)]
    feasible.sort(key=lambda step: (step.config != previous_config, step.objective))

    # Without new measurements, only a verified winner is in question: a near rival must not
    # replace it by chance.
    is_known_winner = (
        previous_choice is not None
        and previous_choice.how == "verified"
        and previous_choice.config != job.kernel.default(problem)
        and all(step.known for step in trace)
    )
    if is_known_winner:
        feasible = [step for step in feasible if step.config == previous_config] or feasible
    return [step.config for step in feasible]


def _measure_finalists(
    job: TuningJob, problem: Problem, ordered: Sequence[Configuration]
) -> list[Configuration]:
    """Return the first `FINALISTS` configurations that keep the limits in new runs, too.

    Without limits, nothing runs. With limits, at worst each configuration runs
    `LIMIT_CHECK_RUNS` times; the seconds of the verification do not bound this, because without a
    finalist within the limits there is no result.
    """
    finalists: list[Configuration] = []
    for config in ordered:
        if len(finalists) == FINALISTS:
            break
        if not _measure_broken_limits(job, problem, config):
            finalists.append(config)
    return finalists


def _measure_broken_limits(job: TuningJob, problem: Problem, config: Configuration) -> str:
    """Run a configuration `LIMIT_CHECK_RUNS` times; return the limits that it violates as text.

    The text is empty if it violates none. Without limits, nothing runs.
    """
    limits = job.constrained_objectives[0].limits
    if not limits:
        return ""
    runs = job.runner.run(job.kernel, problem, [config] * LIMIT_CHECK_RUNS)
    return violated_limits(limits, list(runs))


def _search(job: TuningJob, problem: Problem, searcher: Searcher, trace: "_Trace") -> None:
    """Run the search until the job's budget is spent; ``trace`` gets its steps."""
    job.start_progress(problem, searcher.space)

    def measure(configs: Sequence[Configuration]) -> Iterator[Measurement]:
        work = [(problem, config) for config in configs]
        for measurement in job.measure(work, trace.incumbent_upper_ms):
            trace.add(measurement)
            yield measurement

    new_count = job.search(searcher, measure, trace.stored).measured

    # Say how much was reused. The stored run of the default alone is not worth a word: a search
    # may begin with it.
    default = job.kernel.default(problem)
    if any(m.config != default for m in trace.stored):
        reused = counted(len(trace.stored), "measurement")
        summary = f"{new_count} new" if new_count else "nothing new is measured"
        job.progress.say(f"{problem.shown}: {reused} reused from the store, {summary}")


class _Trace:
    """The steps of one search and its incumbent.

    The guide is for reporting only: it gives the prediction beside each new measurement, and is
    corrected by the measurements so far. The searcher does not use these predictions.

    Attributes:
        stored: measurements of earlier searches, which are the first steps.
        steps: all measurements in order, the stored ones first.
        incumbent: the best measurement so far; None if none is within the limits.
    """

    def __init__(self, job: TuningJob, stored: list[Measurement], guide: Guide | None) -> None:
        self._job = job
        self._objective = job.constrained_objectives[0]
        self._guide = guide
        self._successful = [m for m in stored if m.ok]
        self._best_value = math.inf
        self.stored = stored
        self.steps = [make_step(m, self._objective, known=True) for m in stored]
        self.incumbent: Measurement | None = None
        for measurement in stored:
            self._update_incumbent(measurement)

    @property
    def new_count(self) -> int:
        """Number of measurements of this search."""
        return len(self.steps) - len(self.stored)

    @property
    def incumbent_upper_ms(self) -> float:
        """Upper confidence bound of the incumbent's median time; infinite without samples."""
        if self.incumbent is None or not self.incumbent.time_ms_samples:
            return math.inf
        _, upper_ms = median_interval(np.array(self.incumbent.time_ms_samples))
        return upper_ms

    def add(self, measurement: Measurement) -> None:
        """Record a measurement with the time that the guide predicted for it."""
        job = self._job
        self.steps.append(make_step(measurement, self._objective, self._guide))
        self._update_incumbent(measurement)

        # After some of the measurements, they correct the predictions of the next ones.
        if measurement.ok:
            self._successful.append(measurement)
            if self._guide is not None and len(self._successful) in CORRECTION_COUNTS:
                self._guide = correct_predictor(self._guide, self._successful, job.device)
        job.progress.advance(self._best_so_far())

    def _update_incumbent(self, measurement: Measurement) -> None:
        value = self._objective.value_of(measurement)
        if value < self._best_value:
            self._best_value = value
            self.incumbent = measurement

    def _best_so_far(self) -> str:
        if self._best_value == math.inf:
            return ""
        return f"best {short_number(self._best_value)} {self._objective.objective.unit}"


def make_step(
    m: Measurement,
    objective: ConstrainedObjective,
    guide: Guide | None = None,
    known: bool = False,
) -> SearchStep:
    """Return a measurement as a step of a search, with the guide's prediction.

    ``known`` marks a measurement of an earlier search.
    """
    predicted = {} if guide is None else guide.prediction_of(m)
    status = step_status(m, objective.limits)
    value = objective.value_of(m)
    return SearchStep(
        config=m.config,
        status=status,
        time_ms=m.time_ms,
        power_w=m.power_w,
        objective=value,
        known=known,
        error=m.error,
        **predicted,
    )
