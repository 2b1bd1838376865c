"""The tuner: predict every configuration of a problem, measure a few, verify the best."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Unpack

import numpy as np

from foretune.collect.runner import Runner
from foretune.collect.timing import median_interval
from foretune.datasets.run_log import RunLog
from foretune.device import Device
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.models.guides.guide import GuideModel, SearchPredictor
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
from foretune.tune.store.subject import Choice
from foretune.tune.verifier import verify
from foretune.values import counted, short_number

FINALISTS = 3
LIMIT_CHECK_RUNS = 3  # new runs of a finalist whose medians must satisfy the limits


def tune_problem(
    kernel: Kernel,
    problem: Problem,
    runner: Runner,
    predictor: PredictorSource = None,
    *,
    objective: Objective = Objective.TIME,
    log: RunLog | None = None,
    verify_s: float = 0.5,
    **options: Unpack[SearchOptions],
) -> TuneResult:
    """Search the configurations of ``problem`` with ``budget`` measurements and verify the best.

    Stored measurements of the same kernel code and device are reused. A problem that was tuned with
    the same or a larger budget is only verified.

    Args:
        kernel: the kernel.
        problem: the problem.
        runner: measures configurations; its device is the one to tune for.
        predictor: gives the prior: any model or a name (`foretune.models.saved.lookup`); by default
            none. A predictor of another device or other code, or a model of yours, is checked and
            corrected by measurements.
        objective: the minimized objective.
        log: also gets the measurements; those that it already has are not repeated.
        verify_s: seconds of interleaved rounds in each process of the verification.
        options: budget, searcher, store and so on, see `SearchOptions`.

    Raises:
        MeterUnavailable: objective or limits need power, which this machine cannot measure.
        MeasurementError: no configuration runs, not even the default, or none within the limits.
        PredictorError, TrackingError: there is no such predictor, or it is of another kernel, has
            not learned power or predicts nothing in the space.
        UsageError: measurements lack the column of a limit, or ``regret`` needs another searcher.
    """
    job = TuningJob.from_options(kernel, runner, options, objective, log=log)
    return tune_one(job, problem, job.find_predictor(predictor), verify_s)


def tune_one(
    job: TuningJob, problem: Problem, guide: SearchPredictor | None, verify_s: float
) -> TuneResult:
    """Tune one problem of a job for its first objective; see `tune_problem`."""
    start = time.perf_counter()
    job.wait_until_idle()
    kernel, device, objective = job.kernel, job.device, job.constrained_objectives[0]
    previous_choice = job.cache.choice(problem, objective)
    other_measurements = job.cache.known_for_other_problems(problem)
    if guide is not None:
        guide = correct_predictor(guide, other_measurements, device)
        other_measurements = guide.unlearned(other_measurements)
    prior = job.prior(problem, kernel.space(problem), guide, objective.objective)
    search = make_searcher(
        job.searcher,
        kernel.space(problem),
        objective,
        job.seed,
        prior,
        problem,
        device,
        other_measurements,
    )
    if job.stopping.regret is not None:
        require_regret_estimate(search, searcher_name(job.searcher))
    if prior is None:
        guide = None
    unfinished = job.cache.choice(problem, objective, unfinished=True)
    trace = _Trace(job, job.known(problem, search.space), guide)
    count, regret = job.stopping.measurements, job.stopping.regret
    if (
        previous_choice is not None
        and trace.known
        and (  # a damaged store may have lost them
            (count is not None and previous_choice.measured >= count)
            or (regret is not None and previous_choice.regret <= regret)
        )
    ):
        job = replace(job, stopping=Stopping(0))
    elif previous_choice is None and unfinished is not None and count is not None:
        spent = min(unfinished.measured, len(trace.known))
        job = replace(job, stopping=replace(job.stopping, measurements=max(0, count - spent)))
    try:
        _search(job, problem, search, trace)
        return verify_and_store(job, problem, search, trace.steps, previous_choice, verify_s, start)
    except BaseException as e:
        best = trace.incumbent.config if trace.incumbent else kernel.default(problem)
        spent = trace.measured + (unfinished.measured if unfinished else 0)
        if trace.measured:
            left = Choice(best, spent, math.nan, "measured")
            job.cache.choose(problem, objective, left, unfinished, unfinished=True)
        if isinstance(e, KeyboardInterrupt):
            said = f"interrupted with {counted(spent, 'new measurement')}"
            kept = "kept; run the same again to go on" if job.cache.is_kept else "not kept"
            raise KeyboardInterrupt(f"{said} {kept}") from None
        raise


def verify_and_store(
    job: TuningJob,
    problem: Problem,
    search: Searcher,
    trace: Sequence[SearchStep],
    previous_choice: Choice | None,
    verify_s: float,
    start: float,
) -> TuneResult:
    """Verify the best of a search and store it.

    ``start`` is when the search began, by `time.perf_counter`.
    """
    kernel, device, objective = job.kernel, job.device, job.constrained_objectives[0]
    first = None if previous_choice is None else previous_choice.config
    feasible = [step for step in trace if math.isfinite(step.objective)]
    feasible.sort(key=lambda s: (s.config != first, s.objective))

    def breaks(config: Configuration) -> str:
        if not objective.limits:
            return ""
        runs = job.runner.run(kernel, problem, [config] * LIMIT_CHECK_RUNS)
        return violated_limits(objective.limits, list(runs))

    within = (step.config for step in feasible if not breaks(step.config))
    default = kernel.default(problem)
    finalists, default_breaks = list(islice(within, FINALISTS)), breaks(default)
    job.wait_until_idle()
    contenders, evidence, noise = verify(job, problem, finalists, verify_s)
    result = TuneResult(
        kernel.name,
        problem,
        device.name,
        objective.objective,
        searcher_name(job.searcher),
        tuple(trace),
        tuple(contenders),
        len(evidence),
        evidence.rounds,
        time.perf_counter() - start,
        objective.limits,
        default_breaks,
        noise,
    )
    if default_breaks and not result.verified:
        raise job.no_feasible_error(len(trace), default_breaks)
    regret = search.expected_regret()
    choice = Choice(
        result.winner.config or default,
        len(search.observed),
        regret if math.isfinite(regret) else math.nan,
        "measured" if result.verdict == "inconclusive" else "verified",
    )
    job.cache.choose(problem, objective, choice, previous_choice)
    return result


def _search(job: TuningJob, problem: Problem, searcher: Searcher, trace: "_Trace") -> None:
    """Run the search; ``trace`` gets its steps."""
    job.start_progress(problem, searcher.space)

    def measure(configs: Sequence[Configuration]) -> Iterator[Measurement]:
        work = [(problem, config) for config in configs]
        for measurement in job.measure(work, trace.incumbent_upper_ms):
            trace.add(measurement)
            yield measurement

    measured = job.search(searcher, measure, trace.known).measured
    default = job.kernel.default(problem)
    if any(m.config != default for m in trace.known):  # a search may begin with the default's run
        summary = f"{measured} new" if measured else "nothing new is measured"
        count, s = len(trace.known), "s" * (len(trace.known) > 1)
        job.progress.say(f"{problem}: {count} measurement{s} reused from the store, {summary}")


class _Trace:
    """The steps of one search, its incumbent, and the predictor corrected by them."""

    def __init__(
        self, job: TuningJob, known: list[Measurement], predictor: SearchPredictor | None
    ) -> None:
        self.known = known
        self._job, self._objective = job, job.constrained_objectives[0]
        self.steps = [make_step(m, self._objective, None, job.device, known=True) for m in known]
        self._predictor = predictor
        self._successful = [m for m in known if m.ok]
        self.incumbent: Measurement | None = None
        self._best = math.inf
        for measurement in known:
            self._update_incumbent(measurement)

    @property
    def measured(self) -> int:
        """Number of new measurements."""
        return len(self.steps) - len(self.known)

    @property
    def incumbent_upper_ms(self) -> float:
        """Upper confidence bound of the incumbent's median time; infinite without samples."""
        if self.incumbent is None or not self.incumbent.time_ms_samples:
            return math.inf
        return median_interval(np.array(self.incumbent.time_ms_samples))[1]

    def add(self, measurement: Measurement) -> None:
        """Record a measurement, and correct the predictor after some of them."""
        job = self._job
        self.steps.append(make_step(measurement, self._objective, self._predictor, job.device))
        self._update_incumbent(measurement)
        if measurement.ok:
            self._successful.append(measurement)
            if self._predictor is not None and len(self._successful) in CORRECTION_COUNTS:
                self._predictor = correct_predictor(self._predictor, self._successful, job.device)
        unit = self._objective.objective.unit
        best = f"best {short_number(self._best)} {unit}" if self._best < math.inf else ""
        job.progress.advance(best)

    def _update_incumbent(self, measurement: Measurement) -> None:
        value = self._objective.value_of(measurement)
        if value < self._best:
            self._best, self.incumbent = value, measurement


def make_step(
    m: Measurement,
    objective: ConstrainedObjective,
    guide: SearchPredictor | None,
    device: Device,
    known: bool = False,
) -> SearchStep:
    """Return a measurement as a step of a search, with the prediction of a `Predictor`."""
    predicted = {}
    if guide is not None and not isinstance(guide.predictor, GuideModel):  # its unit is unknown
        row = guide.predictor.predict_one(m.problem, m.config, device)
        predicted = {"predicted_ms": row["time_ms"]}
        if guide.has_valid_interval(device):
            predicted |= {"low_ms": row["time_ms_low"], "high_ms": row["time_ms_high"]}
    status = step_status(m, objective.limits)
    value = objective.value_of(m)
    return SearchStep(
        m.config, status, m.time_ms, m.power_w, value, known=known, error=m.error, **predicted
    )
