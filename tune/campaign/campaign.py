"""The campaign: profiles a kernel, trains a predictor, tunes unseen problems and verifies.

Every result is on disk at once, so an interrupted campaign can be continued.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from foretune.collect.collection import collect_runs, plan_configurations
from foretune.collect.runner import Runner
from foretune.collect.timing import Timing
from foretune.datasets.run_log import RunLog
from foretune.datasets.runs import problems_of, to_measurements
from foretune.device import Device
from foretune.errors import ProblemError, UnknownName, UsageError
from foretune.files import require_writable, translate_read_errors
from foretune.kernel import Kernel
from foretune.models.predictor import Predictor
from foretune.models.saved.guides import SearchPredictor, SpacePredictor
from foretune.models.saved.lookup import PredictorSource
from foretune.models.training import VALIDATION_LEVELS, Training, ValidationLevel, train_predictor
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.redaction import redact
from foretune.registry import get_kernel, load
from foretune.search.stopping import make_stopping
from foretune.space import Configuration
from foretune.tune.campaign.folder import CampaignFolder, open_folder, read_state
from foretune.tune.campaign.observer import (
    DEFAULT_OBSERVERS,
    Campaign,
    CampaignObserver,
    CampaignStart,
)
from foretune.tune.job import TuningJob
from foretune.tune.results import TuneResult
from foretune.tune.store.cache import MeasurementCache, StoreLocation
from foretune.tune.tuner import tune_one


@dataclass(frozen=True)
class Preset:
    """How much a campaign does.

    Attributes:
        train_problems: problems profiled.
        random_configs: configurations of each, the default among them.
        guided_configs: as many more of each, chosen by a predictor of the first ones.
        tune_problems: problems tuned, none of which was profiled.
        budget: measurements of each search.
        box_s: maximum seconds of timing per configuration.
        verify_s: seconds of interleaved rounds in each process of a verification.
    """

    train_problems: int
    random_configs: int
    guided_configs: int
    tune_problems: int
    budget: int
    box_s: float
    verify_s: float

    def timing(self) -> Timing:
        """Return the timing rule."""
        return Timing(max_seconds=self.box_s)


PRESETS = {
    "quick": Preset(10, 8, 4, 2, 10, 0.05, 0.5),
    "full": Preset(32, 32, 16, 12, 10, 0.25, 0.8),
}


def get_preset(name: str) -> Preset:
    """Return the preset called ``name``.

    Raises:
        UnknownName: there is none.
    """
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    return PRESETS[name]


GUIDED_POOL_SIZE = 30_000
"""Configurations of a problem among which the second round of profiling looks for good ones."""


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
    observers: Sequence[str | CampaignObserver] = DEFAULT_OBSERVERS,
    tracking_uri: str | None = None,
    validate: ValidationLevel = "full",
    seed: int = 0,
    store: StoreLocation = None,
    patience_s: float = 0.0,
    progress: Progress | Literal[False] = False,
) -> Campaign:
    """Run a campaign from profiling to report, or go on with one that was interrupted.

    Args:
        kernel: the kernel to tune.
        runner: measures; its device is the one tuned for.
        preset: how much is done; ``quick`` by default.
        problems: those to tune; by default as many unseen ones as the preset says.
        objective: minimized by the searches.
        model: registered name of what the predictor learns with.
        searcher: as in `foretune.tune_problem`.
        budget: of each search, as in `foretune.tune_problem`; by default the preset's.
        regret: likewise.
        seconds: likewise.
        predictor: says from the first what is worth profiling, as in `foretune.tune_problem`. A
            `Predictor`'s runs are learned from, too, save those of problems to tune.
        out: campaigns are kept in folders ``KERNEL-NNN`` under it.
        observers: told about results; registered names (``report``, ``mlflow``) or objects.
        tracking_uri: of MLflow; None takes ``MLFLOW_TRACKING_URI``, else ``sqlite:///mlflow.db``.
        validate: how much of the predictor, see `foretune.train_predictor`; it decides who becomes
            champion.
        seed: of everything random.
        store: as in `foretune.tune_problem`.
        patience_s: as in `foretune.tune_problem`.
        progress: told what happens.

    Raises:
        TrackingError: MLflow cannot be reached.
        UnknownName: there is no such observer.
        PredictorError, UsageError: ``predictor`` cannot be used.
        OutputError: ``out`` cannot be written.
        MeterUnavailable: the objective needs power, which cannot be measured here.
    """
    preset, progress = preset or PRESETS["quick"], progress or SILENT
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
    # not an object's: a function's text differs from process to process
    named = f"{predictor}: " if isinstance(predictor, str | os.PathLike) else ""
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
        "predictor": "" if guide is None else redact(named + str(guide)),
    }
    require_writable(out, "campaigns into")
    watching = _made(observers, tracking_uri, progress)
    progress.say(f"preparing {out}")
    folder = open_folder(out, request)
    with RunLog(folder.runs, runner.device) as log:  # locks the folder for other processes
        folder.save(
            device=asdict(runner.device),
            place=kernel.location,
            profiled=[dict(p) for p in known],
        )
        start = CampaignStart(kernel, runner.device, folder)
        for observer in watching:
            observer.on_start(start)
        try:
            job = replace(job, cache=MeasurementCache.for_kernel(kernel, runner.device, store, log))
            training = _profile_and_train(
                job, known, unseen, guide, preset, log, folder, model, validate
            )
            results = _tune(job, unseen, training.predictor, preset.verify_s, folder, watching)
            progress.start("finishing", 1)
            log.close()
            campaign = Campaign(results, training, folder.path, 0.0).with_state(folder.state)
            for observer in watching:
                observer.on_finish(campaign)
            folder.save(finished=True)
            progress.advance()
        except BaseException as e:
            for observer in watching:
                observer.on_failure(e)
            raise
    return campaign.with_state(folder.state)


def notify_observers(
    path: Path,
    observers: Sequence[str | CampaignObserver] = DEFAULT_OBSERVERS,
    *,
    tracking_uri: str | None = None,
    progress: Progress = SILENT,
) -> Campaign:
    """Tell observers of the finished campaign in the folder ``path``; return the campaign.

    The report is written again, and MLflow gets what it does not have.

    Raises:
        UsageError: there is no finished campaign.
        TrackingError: MLflow cannot be reached.
    """
    start, campaign = load_campaign(path)
    for observer in _made(observers, tracking_uri, progress):
        observer.on_start(start)
        try:
            for result in campaign.results:
                observer.on_result(result)
            observer.on_finish(campaign)
        except BaseException as e:
            observer.on_failure(e)
            raise
    return campaign.with_state(start.folder.state)


def _made(
    observers: Sequence[str | CampaignObserver], tracking_uri: str | None, progress: Progress
) -> list[CampaignObserver]:
    return [
        load("observers", o)(tracking_uri, progress) if isinstance(o, str) else o for o in observers
    ]


def load_campaign(path: Path) -> tuple[CampaignStart, Campaign]:
    """Return the finished campaign in the folder ``path``; its predictor is trained again.

    Raises:
        UsageError: there is no finished campaign.
    """
    state = read_state(path)
    request = state["request"]
    if not state.get("finished"):
        raise UsageError(f"the campaign in {path} is not finished: start it again to go on")
    kernel = get_kernel(state.get("place") or request["kernel"])
    folder = CampaignFolder(path, request)
    learned = Predictor.load(folder.predictor).runs_
    with translate_read_errors(
        path, UsageError, "holds a damaged campaign ({}): start another one"
    ):
        results = tuple(TuneResult.from_dict(r) for r in state["results"].values())
        model, how = request["model"], {n: request[n] for n in ("seed", "validate")}
        device = Device(**state["device"])
    campaign = Campaign(results, train_predictor(learned, model, **how), path, 0.0)
    return CampaignStart(kernel, device, folder), campaign.with_state(state)


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
        first: SpacePredictor
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
    if guide is not None and isinstance(guide.predictor, Predictor):
        before = guide.predictor.measured_runs()
        others = [p not in unseen for p in problems_of(before)]
        rows = pd.concat([before[others], rows], ignore_index=True)
    training = train_predictor(rows, model, seed=seed, kernel=kernel, validate=validate)
    training.predictor.save(folder.predictor)
    folder.predictor.chmod(0o700)
    progress.advance()
    return training


def _select_problems(problems: Iterable[Problem], runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``problems``: those of a problem to tune must not reach the predictor."""
    wanted = set(problems)
    return runs[[m.problem in wanted for m in to_measurements(runs)]].reset_index(drop=True)


def _promising_configs(
    job: TuningJob, problems: list[Problem], n: int, predictor: SpacePredictor, log: RunLog
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
    observers: Sequence[CampaignObserver],
) -> tuple[TuneResult, ...]:
    results = []
    for problem in problems:
        done = folder.state["results"].get(problem.id)
        if done is None:
            result = tune_one(job, problem, SearchPredictor(predictor), verify_s)
            folder.state["results"][problem.id] = result.to_dict()
            folder.save()
        else:
            result = TuneResult.from_dict(done)
        results.append(result)
        for observer in observers:
            observer.on_result(result)
    return tuple(results)
