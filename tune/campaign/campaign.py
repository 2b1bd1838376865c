"""The campaign: profiles a kernel, trains a predictor, tunes unseen problems and verifies.

Every result is written immediately, so an interrupted campaign can be continued.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
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
from foretune.datasets.runs import problems_of
from foretune.errors import ProblemError, require_known
from foretune.kernel import Kernel
from foretune.models.guides.guide import Guide, TrainedGuide
from foretune.models.predictor import Predictor
from foretune.models.saved.lookup import PredictorSource
from foretune.models.training import Training, train_predictor
from foretune.models.validation.cross_validation import VALIDATION_LEVELS, ValidationLevel
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.redaction import redact
from foretune.search.factory import searcher_name
from foretune.space import Configuration
from foretune.support.files import require_writable
from foretune.tune.campaign.folder import CampaignFolder, open_folder
from foretune.tune.campaign.observer import (
    DEFAULT_OBSERVERS,
    Campaign,
    CampaignObserver,
    CampaignStart,
    make_observers,
    notified,
)
from foretune.tune.job import SearchOptions, TuningJob
from foretune.tune.results import TuneResult
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.store.fallible import StoreLocation, location_name
from foretune.tune.tuner import tune_one

GUIDED_POOL_SIZE = 30_000
"""Configurations of a problem from which the second round of profiling takes promising ones."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The size of a campaign.

    Attributes:
        train_problems: number of problems to profile.
        random_configs: random configurations of each, including the default.
        guided_configs: further ones of each, chosen by a predictor trained on the first.
        tune_problems: number of problems to tune, none of which was profiled.
        budget: measurements of each search.
        profile_s: seconds after which no further problem is profiled, see `collect_runs`.
        box_s: maximum seconds of timing per configuration.
        verify_s: maximum seconds of all processes of a verification.
    """

    train_problems: int
    random_configs: int
    guided_configs: int
    tune_problems: int
    budget: int
    profile_s: float
    box_s: float
    verify_s: float

    def timing(self) -> Timing:
        """Return the timing rule."""
        return Timing(max_seconds=self.box_s)


PRESETS = {
    "quick": Preset(
        train_problems=10,
        random_configs=8,
        guided_configs=4,
        tune_problems=2,
        budget=10,
        profile_s=75.0,
        box_s=0.05,
        verify_s=30.0,
    ),
    "full": Preset(
        train_problems=32,
        random_configs=32,
        guided_configs=16,
        tune_problems=12,
        budget=10,
        profile_s=7200.0,
        box_s=0.25,
        verify_s=60.0,
    ),
}


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
            predictor becomes MLflow's champion of its kernel (`foretune.tune.mlflow.promotion`).
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
    plan = _CampaignPlan(
        job=job,
        preset=preset,
        problems=_choose_problems(kernel, preset, problems, job.seed),
        guide=job.find_predictor(predictor),
        model=model,
        validate=validate,
    )
    require_writable(out, "into")
    watching = make_observers(observers, job.progress)

    folder = open_folder(out, plan.request(predictor))
    job.progress.say(f"continues {folder.path}" if folder.is_continued else f"preparing {out}")
    return plan.run(folder, watching, options.get("store"))


@dataclass(frozen=True)
class CampaignProblems:
    """The problems of a campaign; no problem is in both lists."""

    profiled: list[Problem]
    tuned: list[Problem]


@dataclass(frozen=True, kw_only=True)
class _CampaignPlan:
    """What a campaign does: it profiles some problems, trains a predictor, and tunes others.

    Three predictors take part. The one that the user gave, if any, chooses **promising**
    configurations to profile, which are not random; otherwise a quick one does, which learned from
    the random ones. The campaign's own learns from all that was profiled, and guides the tuning.

    Attributes:
        guide: the predictor that the user gave; None without one.
    """

    job: TuningJob
    preset: Preset
    problems: CampaignProblems
    guide: Guide | None
    model: str
    validate: ValidationLevel

    def request(self, predictor: PredictorSource) -> dict[str, Any]:
        """Return the values that identify a campaign: an equal request continues it."""
        job = self.job
        guide_name = ""
        if self.guide is not None:
            # The text of an object is left out: a function's differs from process to process.
            source = f"{predictor}: " if isinstance(predictor, str | os.PathLike) else ""
            guide_name = redact(source + str(self.guide))
        return {
            "kernel": job.kernel.name,
            "source": job.kernel.source_hash,
            "device": job.device.name,
            "preset": asdict(self.preset),
            "problems": [dict(problem) for problem in self.problems.tuned],
            "objective": job.objectives[0].value,
            "model": self.model,
            "searcher": searcher_name(job.searcher),
            "stopping": asdict(job.stopping),
            "validate": self.validate,
            "seed": job.seed,
            "predictor": guide_name,
        }

    def run(
        self, folder: CampaignFolder, observers: list[CampaignObserver], store: StoreLocation
    ) -> Campaign:
        """Profile, train, tune, and report to ``observers``."""
        kernel = self.job.kernel
        device = self.job.device
        with RunLog(folder.runs, device) as log:  # locks the folder for other processes
            folder.save(
                device=asdict(device),
                place=kernel.location,
                store=location_name(store),
                profiled=[dict(problem) for problem in self.problems.profiled],
            )
            with notified(observers, CampaignStart(kernel, device, folder)):
                # From now on, all that is measured or found goes to the campaign's table, too.
                cache = MeasurementCache.for_kernel(kernel, device, store, log)
                plan = replace(self, job=replace(self.job, cache=cache))
                plan._profile(folder, log)
                training = plan._train(folder, log)
                results = plan._tune(training.predictor, folder, observers)
                campaign = plan._finish(results, training, folder, log, observers)
        return campaign.with_state(folder.state)  # observers have added where it is tracked

    def _profile(self, folder: CampaignFolder, log: RunLog) -> None:
        """Measure random configurations of the profiled problems, then promising ones."""
        job = self.job
        problems = self.problems.profiled
        random_configs = plan_configurations(
            job.kernel, problems, self.preset.random_configs, job.seed
        )
        per_problem = self.preset.random_configs + self.preset.guided_configs
        random_share = self.preset.random_configs / per_problem
        collect_runs(
            job.kernel,
            random_configs,
            job.cache,
            job.runner,
            progress=job.progress,
            max_seconds=random_share * self.preset.profile_s,
        )

        # The choice is saved, so that a continued campaign measures the same ones.
        if "guided" not in folder.state:
            chosen = self._promising_configs(log)
            folder.save(guided=[[dict(c) for c in configs] for configs in chosen.values()])
        promising_configs = {
            problem: [Configuration(config) for config in configs]
            for problem, configs in zip(problems, folder.state["guided"], strict=True)
        }
        collect_runs(
            job.kernel,
            promising_configs,
            job.cache,
            job.runner,
            progress=job.progress,
            stage="profiling promising configurations of",
            max_seconds=(1 - random_share) * self.preset.profile_s,
        )
        # The time may have been too short for all of them.
        planned = _pairs(random_configs) | _pairs(promising_configs)
        n_profiled = sum(job.cache.find(*pair) is not None for pair in planned)
        if n_profiled < len(planned):
            job.progress.say(
                f"profiled {n_profiled} of {len(planned)} configurations: profiling reached its "
                f"limit of {self.preset.profile_s:g} s; on a quieter machine it gets further"
            )

    def _promising_configs(self, log: RunLog) -> dict[Problem, list[Configuration]]:
        """Return, per problem, the unmeasured configurations of a random pool predicted to be best.

        Random ones are seldom good, but a tuner must distinguish the best among good ones.
        """
        kernel = self.job.kernel
        device = self.job.device
        guide = self._quick_guide(log) if self.guide is None else self.guide
        rng = np.random.default_rng(self.job.seed)
        chosen: dict[Problem, list[Configuration]] = {}
        for problem in self.problems.profiled:
            space = kernel.space(problem)
            pool = space.sample_indices(GUIDED_POOL_SIZE, rng)
            time_ms = guide.predict_space(problem, space, pool)["time_ms"].to_numpy()
            fastest_first = (space[int(i)] for i in pool[np.argsort(time_ms)])
            unmeasured = (
                config
                for config in fastest_first
                if log.find((kernel.name, device.name, problem, config)) is None
            )
            chosen[problem] = list(islice(unmeasured, self.preset.guided_configs))
        return chosen

    def _quick_guide(self, log: RunLog) -> Guide:
        """Return a predictor of time that learned from the random configurations."""
        rows = _rows_of_problems(log.runs(), self.problems.profiled)
        predictor = Predictor(self.model, ("time_ms",), self.job.seed, self.job.kernel).fit(rows)
        return TrainedGuide(predictor, self.job.device)

    def _train(self, folder: CampaignFolder, log: RunLog) -> Training:
        """Train a predictor on what was profiled, and on what a given predictor learned from."""
        job = self.job
        job.progress.start("training the predictor", 1)
        # The folder's runs may hold problems to tune: they stay out of the training.
        rows = _rows_of_problems(log.runs(), self.problems.profiled)
        if self.guide is not None:
            earlier_rows = self.guide.training_runs()  # none of a user's model
            if len(earlier_rows):
                is_usable = [p not in self.problems.tuned for p in problems_of(earlier_rows)]
                rows = pd.concat([earlier_rows[is_usable], rows], ignore_index=True)

        training = train_predictor(
            rows, self.model, seed=job.seed, kernel=job.kernel, validate=self.validate
        )
        training.predictor.save(folder.predictor)
        folder.predictor.chmod(0o700)
        job.progress.advance()
        return training

    def _tune(
        self, predictor: Predictor, folder: CampaignFolder, observers: list[CampaignObserver]
    ) -> tuple[TuneResult, ...]:
        """Tune the problems that are not tuned yet; report all results to observers."""
        guide = TrainedGuide(predictor, self.job.device)
        results: list[TuneResult] = []
        for problem in self.problems.tuned:
            saved_results = folder.state["results"]
            if problem.id in saved_results:
                result = TuneResult.from_dict(saved_results[problem.id])
            else:
                result = tune_one(self.job, problem, guide, self.preset.verify_s)
                folder.save(results={**saved_results, problem.id: result.to_dict()})
            results.append(result)
            for observer in observers:
                observer.on_result(result)
        return tuple(results)

    def _finish(
        self,
        results: tuple[TuneResult, ...],
        training: Training,
        folder: CampaignFolder,
        log: RunLog,
        observers: list[CampaignObserver],
    ) -> Campaign:
        """Close the run table, and report the campaign to observers."""
        self.job.progress.start("finishing", 1)
        log.close()
        campaign = Campaign.from_state(folder.state, results, training, folder.path)
        for observer in observers:
            observer.on_finish(campaign)
        folder.save(finished=True)
        self.job.progress.advance()
        return campaign


def _choose_problems(
    kernel: Kernel, preset: Preset, to_tune: list[Problem] | None, seed: int
) -> CampaignProblems:
    """Return the problems to profile and to tune; ``to_tune`` is None if they are drawn."""
    n_to_tune = preset.tune_problems if to_tune is None else len(to_tune)
    drawn = kernel.training_problems(preset.train_problems + n_to_tune, seed)
    tuned = drawn[preset.train_problems :] if to_tune is None else to_tune
    profiled = [problem for problem in drawn if problem not in tuned][: preset.train_problems]
    if not tuned or not profiled:
        raise ProblemError(f"{kernel.name} offers too few different problems for this preset")
    return CampaignProblems(profiled, tuned)


def _pairs(
    configs_of_problem: Mapping[Problem, Sequence[Configuration]],
) -> set[tuple[Problem, Configuration]]:
    return {
        (problem, config) for problem, configs in configs_of_problem.items() for config in configs
    }


def _rows_of_problems(runs: pd.DataFrame, problems: Iterable[Problem]) -> pd.DataFrame:
    wanted = set(problems)
    is_wanted = [problem in wanted for problem in problems_of(runs)]
    return runs[is_wanted].reset_index(drop=True)
