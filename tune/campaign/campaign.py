"""The campaign: profiles a kernel, trains a predictor, tunes unseen problems and verifies.

Every result is written immediately, so an interrupted campaign can be continued.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd

from foretune.collect.collection import collect_runs, plan_configurations
from foretune.collect.runner import Runner
from foretune.collect.timing import Timing
from foretune.datasets.run_log import RunLog
from foretune.datasets.runs import problems_of, to_measurements
from foretune.device import Device
from foretune.errors import ProblemError, UsageError, require_known
from foretune.kernel import Kernel
from foretune.models.guides.guide import Guide, TrainedGuide
from foretune.models.predictor import Predictor
from foretune.models.saved.lookup import PredictorSource
from foretune.models.training import Training, train_predictor
from foretune.models.validation.cross_validation import VALIDATION_LEVELS, ValidationLevel
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.redaction import redact
from foretune.registry import get_kernel, load
from foretune.search.factory import searcher_name
from foretune.space import Configuration
from foretune.support.files import require_writable, translate_read_errors
from foretune.support.progress import SILENT, Progress
from foretune.tune.campaign.folder import CampaignFolder, open_folder, read_state
from foretune.tune.campaign.observer import (
    DEFAULT_OBSERVERS,
    Campaign,
    CampaignObserver,
    CampaignStart,
)
from foretune.tune.job import SearchOptions, TuningJob
from foretune.tune.results import TuneResult
from foretune.tune.store.cache import MeasurementCache, StoreLocation
from foretune.tune.tuner import tune_one


@dataclass(frozen=True)
class Preset:
    """The size of a campaign.

    Attributes:
        train_problems: number of problems to profile.
        random_configs: random configurations of each, including the default.
        guided_configs: further ones of each, chosen by a predictor trained on the first.
        tune_problems: number of problems to tune, none of which was profiled.
        budget: measurements of each search.
        box_s: maximum seconds of timing per configuration.
        verify_s: maximum seconds of a verification.
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
    "quick": Preset(10, 8, 4, 2, 10, 0.05, 30.0),
    "full": Preset(32, 32, 16, 12, 10, 0.25, 60.0),
}
GUIDED_POOL_SIZE = 30_000
"""Configurations of a problem from which the second round of profiling takes promising ones."""


def run_campaign(
    kernel: Kernel,
    runner: Runner,
    preset: Preset | None = None,
    *,
    problems: list[Problem] | None = None,
    objective: Objective = Objective.TIME,
    model: str = "xgboost",
    predictor: PredictorSource = None,
    out: Path = Path("campaigns"),
    observers: Sequence[str | CampaignObserver] = DEFAULT_OBSERVERS,
    validate: ValidationLevel = "full",
    **options: Unpack[SearchOptions],
) -> Campaign:
    """Run a campaign from profiling to report, or continue one that was interrupted.

    Args:
        kernel: the kernel to tune.
        runner: measures configurations; its device is the one to tune for.
        preset: size of the campaign; ``quick`` by default.
        problems: problems to tune; by default, the preset's number of unseen ones.
        objective: the value that the searches minimize.
        model: registered name of the predictor's model.
        predictor: guides profiling from the start, as in `foretune.tune_problem`. A `Predictor`'s
            runs also train the new one, except those of problems to tune.
        out: campaigns are kept in folders ``KERNEL-NNN`` under it.
        observers: receive the results; registered names (``report``, ``mlflow``) or objects. MLflow
            is at ``MLFLOW_TRACKING_URI``, else ``sqlite:///mlflow.db``.
        validate: level of validation, see `foretune.train_predictor`; its scores decide whether the
            predictor becomes champion.
        options: budget, searcher, store and so on of each search, see `SearchOptions`; no limits.

    Raises:
        TrackingError: MLflow cannot be reached.
        UnknownName: there is no such observer.
        PredictorError, UsageError: ``predictor`` cannot be used.
        OutputError: ``out`` cannot be written.
        MeterUnavailable: the objective needs power, which cannot be measured here.
    """
    preset = preset or PRESETS["quick"]
    job = TuningJob.from_options(
        kernel, runner, options, objective, default_budget=preset.budget, lacks=("limits",)
    )
    require_known("level of validation", validate, VALIDATION_LEVELS)
    known, unseen = _problems(kernel, preset, problems, job.seed)
    plan = _Plan(job, preset, known, unseen, job.find_predictor(predictor), model, validate)
    require_writable(out, "into")
    watching = _made(observers, job.progress)
    folder = open_folder(out, plan.request(predictor))
    job.progress.say(f"continues {folder.path}" if folder.is_continued else f"preparing {out}")
    return plan.run(folder, watching, options.get("store"))


@dataclass(frozen=True)
class _Plan:
    """The steps of a campaign: it profiles ``known`` problems, and tunes ``unseen`` ones."""

    job: TuningJob
    preset: Preset
    known: list[Problem]
    unseen: list[Problem]
    guide: Guide | None
    model: str
    validate: ValidationLevel

    def request(self, predictor: PredictorSource) -> dict[str, Any]:
        """Return the values that identify a campaign: an equal request continues it."""
        job, kernel = self.job, self.job.kernel
        # not an object's: a function's text differs from process to process
        named = f"{predictor}: " if isinstance(predictor, str | os.PathLike) else ""
        return {
            "kernel": kernel.name,
            "source": kernel.source_hash,
            "device": job.device.name,
            "preset": asdict(self.preset),
            "problems": [dict(p) for p in self.unseen],
            "objective": job.objectives[0].value,
            "model": self.model,
            "searcher": searcher_name(job.searcher),
            "stopping": asdict(job.stopping),
            "validate": self.validate,
            "seed": job.seed,
            "predictor": "" if self.guide is None else redact(named + str(self.guide)),
        }

    def run(
        self, folder: CampaignFolder, observers: list[CampaignObserver], store: StoreLocation
    ) -> Campaign:
        kernel, device, progress = self.job.kernel, self.job.device, self.job.progress
        with RunLog(folder.runs, device) as log:  # locks the folder for other processes
            folder.save(
                device=asdict(device), place=kernel.location, profiled=[dict(p) for p in self.known]
            )
            with _notified(observers, CampaignStart(kernel, device, folder)):
                cache = MeasurementCache.for_kernel(kernel, device, store, log)
                plan = replace(self, job=replace(self.job, cache=cache))
                training = plan._profile_and_train(folder, log)
                results = plan._tune(training.predictor, folder, observers)
                progress.start("finishing", 1)
                log.close()
                campaign = Campaign(results, training, folder.path, 0.0).with_state(folder.state)
                for observer in observers:
                    observer.on_finish(campaign)
                folder.save(finished=True)
                progress.advance()
        return campaign.with_state(folder.state)

    def _profile_and_train(self, folder: CampaignFolder, log: RunLog) -> Training:
        """Profile random configurations, then promising ones, and train on both."""
        job, problems = self.job, self.known
        kernel, cache, runner, progress = job.kernel, job.cache, job.runner, job.progress
        random = plan_configurations(kernel, problems, self.preset.random_configs, job.seed)
        collect_runs(kernel, random, cache, runner, progress)
        if "guided" not in folder.state:
            guided = self._promising_configs(log)
            folder.save(guided=[[dict(c) for c in configs] for configs in guided.values()])
        chosen = folder.state["guided"]
        guided = {p: [Configuration(c) for c in cs] for p, cs in zip(problems, chosen, strict=True)}
        collect_runs(
            kernel, guided, cache, runner, progress, "profiling promising configurations of"
        )
        progress.start("training the predictor", 1)
        rows = _select_problems(problems, log.runs())
        before = None if self.guide is None else self.guide.training_runs()
        if before is not None and len(before):  # a user's model has none
            others = [p not in self.unseen for p in problems_of(before)]
            rows = pd.concat([before[others], rows], ignore_index=True)
        training = train_predictor(
            rows, self.model, seed=job.seed, kernel=kernel, validate=self.validate
        )
        training.predictor.save(folder.predictor)
        folder.predictor.chmod(0o700)
        progress.advance()
        return training

    def _promising_configs(self, log: RunLog) -> dict[Problem, list[Configuration]]:
        """Return, per problem, the unmeasured configurations of a random pool predicted to be best.

        Random ones are seldom good, but a tuner must distinguish the best among good ones.
        """
        kernel, device, seed = self.job.kernel, self.job.device, self.job.seed
        guide = self.guide
        if guide is None:
            rows = _select_problems(self.known, log.runs())
            predictor = Predictor(self.model, ("time_ms",), seed, kernel).fit(rows)
            guide = TrainedGuide(predictor, device)
        rng, chosen = np.random.default_rng(seed), {}
        for problem in self.known:
            space = kernel.space(problem)
            pool = space.sample_indices(GUIDED_POOL_SIZE, rng)
            time_ms = guide.predict_space(problem, space, pool)["time_ms"]
            best = (space[int(i)] for i in pool[np.argsort(time_ms.to_numpy())])
            measured = (kernel.name, device.name, problem)
            new = (c for c in best if log.find((*measured, c)) is None)
            chosen[problem] = list(islice(new, self.preset.guided_configs))
        return chosen

    def _tune(
        self, predictor: Predictor, folder: CampaignFolder, observers: list[CampaignObserver]
    ) -> tuple[TuneResult, ...]:
        """Tune the unseen problems that are not tuned yet; report all results to observers."""
        results, done = [], folder.state["results"]
        for problem in self.unseen:
            if problem.id in done:
                result = TuneResult.from_dict(done[problem.id])
            else:
                guide = TrainedGuide(predictor, self.job.device)
                result = tune_one(self.job, problem, guide, self.preset.verify_s)
                done[problem.id] = result.to_dict()
                folder.save()
            results.append(result)
            for observer in observers:
                observer.on_result(result)
        return tuple(results)


@contextmanager
def _notified(observers: Sequence[CampaignObserver], start: CampaignStart) -> Iterator[None]:
    """Notify observers when a campaign starts, and of its error if it fails."""
    for observer in observers:
        observer.on_start(start)
    try:
        yield
    except BaseException as e:
        for observer in observers:
            observer.on_failure(e)
        raise


def notify_observers(
    path: Path, observers: Sequence[str | CampaignObserver] = DEFAULT_OBSERVERS
) -> Campaign:
    """Notify observers of the finished campaign in ``path``, and return it.

    The report is written again, and MLflow gets everything it lacks, or TrackingError is raised.
    """
    start, campaign = load_campaign(path)
    for observer in _made(observers, SILENT):
        with _notified([observer], start):
            for result in campaign.results:
                observer.on_result(result)
            observer.on_finish(campaign)
    return campaign.with_state(start.folder.state)


def _made(
    observers: Sequence[str | CampaignObserver], progress: Progress
) -> list[CampaignObserver]:
    return [load("observers", o)(progress) if isinstance(o, str) else o for o in observers]


def load_campaign(path: Path) -> tuple[CampaignStart, Campaign]:
    """Return the finished campaign in the folder ``path``; its predictor is trained again.

    Raises UsageError if there is no finished campaign.
    """
    state = read_state(path)
    request = state["request"]
    if not state.get("finished"):
        raise UsageError(f"the campaign in {path} is not finished: run it again to continue")
    kernel = get_kernel(state.get("place") or request["kernel"])
    folder = CampaignFolder(path, request)
    learned = Predictor.load(folder.predictor).runs_
    with translate_read_errors(path, UsageError, "holds a damaged campaign ({}): start a new one"):
        results = tuple(TuneResult.from_dict(r) for r in state["results"].values())
        model, how = request["model"], {n: request[n] for n in ("seed", "validate")}
        device = Device(**state["device"])
    campaign = Campaign(results, train_predictor(learned, model, **how), path, 0.0)
    return CampaignStart(kernel, device, folder), campaign.with_state(state)


def _problems(
    kernel: Kernel, preset: Preset, wanted: list[Problem] | None, seed: int
) -> tuple[list[Problem], list[Problem]]:
    """Return the problems to profile and the problems to tune; they are disjoint."""
    count = preset.train_problems + (preset.tune_problems if wanted is None else len(wanted))
    drawn = kernel.training_problems(count, seed)
    unseen = drawn[preset.train_problems :] if wanted is None else wanted
    known = [p for p in drawn if p not in unseen][: preset.train_problems]
    if not unseen or not known:
        raise ProblemError(f"{kernel.name} offers too few different problems for this preset")
    return known, unseen


def _select_problems(problems: Iterable[Problem], runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``problems``, to keep those of problems to tune from the predictor."""
    wanted = set(problems)
    return runs[[m.problem in wanted for m in to_measurements(runs)]].reset_index(drop=True)
