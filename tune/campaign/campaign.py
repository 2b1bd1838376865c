"""The campaign: profile a kernel, learn from it, tune problems it has not seen, verify, report.

Everything is on disk the moment it is known; a campaign that was killed goes on where it stopped.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from foretune.collect import Runner, collect_runs, plan_configurations
from foretune.collect.benchmark import environment
from foretune.datasets import RunLog, read_runs, to_measurements
from foretune.datasets.runs import problems_of
from foretune.device import Device
from foretune.errors import ProblemError, UnknownName, UsageError
from foretune.files import translate_read_errors
from foretune.kernel import Kernel
from foretune.models import Predictor, Training, train_predictor
from foretune.models.explanation import importance, is_explainable, parameter_importance
from foretune.models.saved.lookup import PredictorSource
from foretune.models.saved.search_predictor import SearchPredictor
from foretune.models.validation.evaluation import VALIDATION_LEVELS, ValidationLevel
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.registry import get_kernel
from foretune.search.stopping import make_stopping
from foretune.space import Configuration
from foretune.tune.campaign.folder import CampaignFolder, open_folder, read_state
from foretune.tune.campaign.preset import PRESETS, Preset
from foretune.tune.job import TuningJob
from foretune.tune.mlflow.tracking import Tracker
from foretune.tune.report import ReportData, headline, write_report
from foretune.tune.report.page import number
from foretune.tune.report.rates import rates
from foretune.tune.results import TuneResult
from foretune.tune.store.cache import MeasurementCache, StoreLocation
from foretune.tune.tuner import tune_one

GUIDED_POOL_SIZE = 30_000
"""Configurations of a problem among which the second round of profiling looks for good ones."""


@dataclass(frozen=True)
class Campaign:
    """A finished campaign.

    Attributes:
        results: one per tuned problem.
        training: the predictor and its honest scores.
        folder: where runs, predictor, results and report lie.
        mlflow_run_id: the parent run.
        mlflow_uri: where it is tracked.
        seconds: wall time of this and earlier, interrupted, attempts.
    """

    results: tuple[TuneResult, ...]
    training: Training
    folder: Path
    mlflow_run_id: str
    mlflow_uri: str
    seconds: float

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.folder / "report.html"

    def summary(self) -> dict[str, Any]:
        """Return the outcome as the command line's JSON gives it."""
        return {
            "best": [r.summary() for r in self.results],
            "predictor": self.training.metrics(),
            "validate": self.training.validation.level,
            "mlflow_run_id": self.mlflow_run_id,
            "mlflow_uri": self.mlflow_uri,
            "report": str(self.report),
            "folder": str(self.folder),
            "seconds": self.seconds,
        }


def run_campaign(
    kernel: Kernel,
    runner: Runner,
    preset: Preset | None = None,
    *,
    problems: list[Problem] | None = None,
    objective: Objective = Objective.TIME,
    model: str = "xgboost",
    searcher: str = "surrogate",
    budget: int | Literal["auto"] | None = None,
    regret: float | None = None,
    seconds: float | None = None,
    predictor: PredictorSource = None,
    out: Path = Path("campaigns"),
    tracking_uri: str | None = None,
    validate: ValidationLevel = "full",
    seed: int = 0,
    store: StoreLocation = None,
    patience_s: float = 0.0,
    progress: Progress = SILENT,
) -> Campaign:
    """Run a campaign from profiling to report, or go on with one that was interrupted.

    Args:
        kernel: what is tuned.
        runner: measures; its device is the one tuned for.
        preset: how much is done; None is ``quick``.
        problems: those to tune; None tunes as many unseen ones as the preset says.
        objective: what is minimised.
        model: registered name of what the predictor learns with.
        searcher: registered name of who searches.
        budget: of each search, see `foretune.tune_problem`; None is the preset's, or what
            ``seconds`` allow.
        regret: at which a search is over; likewise.
        seconds: wall time of each search at most; likewise.
        predictor: goes on from this one, an object or a name (`foretune.models.saved.lookup`): it
            says from the first what is worth profiling, and its runs are learned from, too, save
            those of problems to tune.
        out: campaigns are kept in folders ``KERNEL-NNN`` under it.
        tracking_uri: of MLflow; None takes ``MLFLOW_TRACKING_URI``, else ``sqlite:///mlflow.db``.
        validate: how much of the predictor, see `foretune.train_predictor`; who becomes champion
            is decided by it, and one problem in five says little of that.
        seed: of everything random.
        store: where everybody finds measurements and choices: what it has is not measured again;
            a `Store`, its path or URL; None is the user's own, False none.
        patience_s: how long to wait for a quiet machine, see `foretune.tune_problem`.
        progress: told what happens.

    Raises:
        TrackingError: MLflow cannot be reached.
        PredictorError, UsageError: ``predictor`` cannot be used.
        OutputError: ``out`` cannot be written.
        MeterUnavailable: the objective needs power, which cannot be measured here.
    """
    preset = preset or PRESETS["quick"]
    budget_or_preset = preset.budget if budget is None and seconds is None else budget
    stopping = make_stopping(budget_or_preset, regret, seconds)
    job = TuningJob(
        kernel, runner, MeasurementCache.for_kernel(kernel, runner.device, store), (objective,),
        searcher=searcher, stopping=stopping, seed=seed, progress=progress,
        patience_s=patience_s,
    )  # fmt: skip
    if validate not in VALIDATION_LEVELS:
        raise UnknownName("extent of validation", validate, VALIDATION_LEVELS)
    guide = job.find_predictor(predictor)
    known, unseen = _problems(kernel, preset, problems, seed)
    request = {
        "kernel": kernel.name,
        "source": kernel.source_hash,
        "device": runner.device.name,
        "preset": asdict(preset),
        "problems": [dict(p) for p in unseen],
        "objective": objective.value,
        "model": model,
        "searcher": searcher,
        "stopping": asdict(stopping),
        "validate": validate,
        "seed": seed,
        "predictor": "" if guide is None else f"{predictor}: {guide}",
    }
    progress.say(f"connecting to MLflow, preparing {out}")
    tracker, folder = Tracker(tracking_uri), open_folder(out, request)
    with RunLog(folder.runs, runner.device) as log:  # nobody else is at work on this folder
        run_id = _open_run(tracker, kernel, runner.device, folder)
        folder.save(
            mlflow_run_id=run_id,
            mlflow_uri=tracker.name,
            device=asdict(runner.device),
            place=kernel.location,
            profiled=[dict(p) for p in known],
        )
        with tracker.running(run_id):
            job = replace(job, cache=MeasurementCache.for_kernel(kernel, runner.device, store, log))
            training = _profile_and_train(
                job, known, unseen, guide, preset, log, folder, model, validate
            )
            results = _tune(job, unseen, training.predictor, preset.verify_s, folder, tracker)
            progress.start("writing the report, tracking", 1)
            runs, seconds = log.runs(), folder.state["seconds"]
            campaign = Campaign(results, training, folder.path, run_id, tracker.name, seconds)
            data = _report_data(kernel, runner.device, campaign, runs)
            write_report(campaign.report, data)
            log.close()
            _track(tracker, kernel, campaign, request, folder)
            tracker.describe(run_id, _markdown_summary(data))
            folder.save(finished=True)
            progress.advance()
    return replace(campaign, seconds=folder.state["seconds"])


def _open_run(tracker: Tracker, kernel: Kernel, device: Device, folder: CampaignFolder) -> str:
    """Return the id of the campaign's run in MLflow."""
    before = folder.state.get("mlflow_run_id")
    tags = {"foretune.kernel": kernel.name, "foretune.device": device.name}
    run_id = tracker.open_run(f"{kernel.name} on {device.name}", before, tags)
    if run_id != before:
        folder.state["tracked"] = {}  # another server knows nothing of the problems tuned
    return run_id


def rebuild_report(path: Path) -> Path:
    """Write the report of the finished campaign in ``path`` again and return where it is.

    Raises:
        UsageError: there is no finished campaign.
    """
    state = read_state(path)
    request = state["request"]
    if not state.get("finished"):
        raise UsageError(f"the campaign in {path} is not finished: start it again to go on")
    kernel = get_kernel(state.get("place") or request["kernel"])
    folder = CampaignFolder(path, request)
    runs = read_runs(folder.runs)
    learned = Predictor.load(folder.predictor).runs_
    with translate_read_errors(
        path, UsageError, "holds a damaged campaign ({}): start another one"
    ):
        results = tuple(TuneResult.from_json(r) for r in state["results"].values())
        model, how = request["model"], {n: request[n] for n in ("seed", "validate")}
        device = Device(**state["device"])
        mlflow = {n: state[n] for n in ("mlflow_run_id", "mlflow_uri")}
    campaign = Campaign(
        results=results,
        training=train_predictor(learned, model, **how),
        folder=path,
        seconds=state["seconds"],
        **mlflow,
    )
    data = _report_data(kernel, device, campaign, runs)
    return write_report(campaign.report, data)


def _problems(
    kernel: Kernel, preset: Preset, wanted: list[Problem] | None, seed: int
) -> tuple[list[Problem], list[Problem]]:
    """Return the problems to profile and the problems to tune: none is in both."""
    count = preset.train_problems + (preset.tune_problems if wanted is None else len(wanted))
    drawn = kernel.training_problems(count, seed)
    unseen = drawn[preset.train_problems :] if wanted is None else wanted
    known = [p for p in drawn if p not in unseen][: preset.train_problems]
    if not unseen or not known:
        raise ProblemError(f"{kernel.name} offers too few different problems for this preset")
    return known, unseen


def _profile_and_train(
    job: TuningJob,
    problems: list[Problem],
    unseen: list[Problem],
    guide: SearchPredictor | None,
    preset: Preset,
    log: RunLog,
    folder: CampaignFolder,
    model: str,
    validate: ValidationLevel,
) -> Training:
    """Profile random configurations, then promising ones, and train on both."""
    kernel, seed, progress = job.kernel, job.seed, job.progress
    cache, runner = job.cache, job.runner
    plan = plan_configurations(kernel, problems, preset.random_configs, seed)
    collect_runs(kernel, plan, cache, runner, progress)
    if "guided" not in folder.state:
        if guide is None:
            first = Predictor(model, ("time_ms",), seed, kernel).fit(
                _select_problems(problems, log.runs())
            )
        else:
            first = guide.predictor
        guided = _promising_configs(job, problems, preset.guided_configs, first, log)
        folder.save(guided=[[dict(c) for c in configs] for configs in guided.values()])
    chosen = folder.state["guided"]
    guided = {p: [Configuration(c) for c in cs] for p, cs in zip(problems, chosen, strict=True)}
    collect_runs(kernel, guided, cache, runner, progress, "profiling promising configurations of")
    progress.start("training the predictor", 1)
    rows = _select_problems(problems, log.runs())
    if guide is not None:
        before = guide.predictor.measured_runs()
        others = [p not in unseen for p in problems_of(before)]
        rows = pd.concat([before[others], rows], ignore_index=True)
    training = train_predictor(rows, model, seed=seed, kernel=kernel, validate=validate)
    training.predictor.save(folder.predictor)
    progress.advance()
    return training


def _select_problems(problems: Iterable[Problem], runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``problems``: those of a problem to tune must not reach the predictor."""
    wanted = set(problems)
    return runs[[m.problem in wanted for m in to_measurements(runs)]].reset_index(drop=True)


def _promising_configs(
    job: TuningJob, problems: list[Problem], n: int, predictor: Predictor, log: RunLog
) -> dict[Problem, list[Configuration]]:
    """Return per problem the ``n`` unmeasured configurations predicted best, of a random pool.

    Random configurations seldom are good ones, and it is among good ones that a tuner must tell
    better from worse.
    """
    rng, device = np.random.default_rng(job.seed), job.device
    chosen: dict[Problem, list[Configuration]] = {}
    for problem in problems:
        space = job.kernel.space(problem)
        pool = space.sample_indices(GUIDED_POOL_SIZE, rng)
        time_ms = predictor.predict_space(problem, space, device, pool)["time_ms"]
        best = (space[int(i)] for i in pool[np.argsort(time_ms.to_numpy())])
        measured = (job.kernel.name, device.name, problem)
        new = (c for c in best if log.find((*measured, c)) is None)
        chosen[problem] = [c for c, _ in zip(new, range(n), strict=False)]
    return chosen


def _tune(
    job: TuningJob,
    problems: list[Problem],
    predictor: Predictor,
    verify_s: float,
    folder: CampaignFolder,
    tracker: Tracker,
) -> tuple[TuneResult, ...]:
    results = []
    for problem in problems:
        done = folder.state["results"].get(problem.id)
        if done is None:
            result = tune_one(job, problem, SearchPredictor(predictor), verify_s)
            folder.state["results"][problem.id] = result.to_json()
            folder.save()
        else:
            result = TuneResult.from_json(done)
        results.append(result)
        _track_problem(tracker, result, folder)
    return tuple(results)


def _track_problem(tracker: Tracker, result: TuneResult, folder: CampaignFolder) -> None:
    tracked = folder.state.setdefault("tracked", {})
    if result.problem.id in tracked:
        return
    run_id = tracker.open_run(
        str(result.problem), None, {"foretune.kernel": result.kernel}, folder.state["mlflow_run_id"]
    )
    tracked[result.problem.id] = run_id
    folder.save()
    with tracker.running(run_id):
        tracker.log_trace(run_id, result)


def _track(
    tracker: Tracker,
    kernel: Kernel,
    campaign: Campaign,
    request: Mapping[str, Any],
    folder: CampaignFolder,
) -> None:
    run_id, results = campaign.mlflow_run_id, campaign.results
    speedups = [r.winner.ratio for r in results if not r.unstable]
    metrics = {
        "speedup_geomean": float(np.exp(np.mean(np.log(speedups)))) if speedups else math.nan,
        "verified_wins": float(sum(r.verified for r in results)),
        "unstable": float(len(results) - len(speedups)),
    }
    preset = {f"preset.{k}": v for k, v in request["preset"].items()}
    flat = {k: v for k, v in request.items() if k not in ("preset", "problems")}
    tracker.log(run_id, {**flat, **preset, "environment": environment(kernel)}, metrics)
    tracker.log_predictor(run_id, campaign.training, folder.predictor, folder.runs)
    tracker.log_best(run_id, [r.summary() for r in campaign.results])
    tracker.log_file(run_id, campaign.report)
    tracker.log_file(run_id, folder.runs)


def _markdown_summary(data: ReportData) -> str:
    """Return a campaign's outcome as Markdown: the headline, and a line per problem."""
    lines = [
        f"| {r.problem} | {number(r.baseline.value)} | {number(r.winner.value)} | {r.verdict} | "
        f"{r.winner.config} |"
        for r in data.results
    ]  # fmt: skip
    unit = data.objective.unit
    head = [f"| problem | default, {unit} | tuned, {unit} | verdict | configuration |",
            "|---|---|---|---|---|"]  # fmt: skip
    return "\n".join([f"**{headline(data)}**", "", *head, *lines])


def _report_data(
    kernel: Kernel, device: Device, campaign: Campaign, runs: pd.DataFrame
) -> ReportData:
    predictor, results = campaign.training.predictor, list(campaign.results)
    return ReportData(
        kernel=kernel.name,
        kernel_location=kernel.location or kernel.name,
        device=device,
        objective=results[0].objective,
        runs=runs,
        validation=campaign.training.validation,
        learned=predictor.training_,
        results=results,
        importance=parameter_importance(
            predictor, [r.problem for r in results], kernel.space, device
        ),
        environment=str(runs["environment"].iloc[-1]),
        started_at=str(runs["recorded_at"].min()),
        seconds=campaign.seconds,
        mlflow_uri=campaign.mlflow_uri,
        rates=[list(rates(kernel, r, device)) for r in results],
        space_size=max(len(kernel.space(r.problem)) for r in results),
        attribution=importance(predictor) if is_explainable(predictor) else None,
    )
