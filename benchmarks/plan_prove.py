"""Does proving a plan find the best settings of a server, and how far off is its promise?

Run: ``python benchmarks/plan_prove.py MODEL --command 'SERVER …'``.

Every setting around the plan is started and loaded, ``--passes`` times in turn (rows are kept in
``--out``, and an interrupted run goes on). The first table has promise and proof of the plan's own
setting, before and after one start corrected the predictor. Then follow searches, replayed on the
recorded settings: the share of the best score that each reaches after so many starts, from the
plan's setting and from others; without limits, and under those of ``--limits``. Nothing is chosen
here: all constants are those of the product.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import fmean, median

import numpy as np
from machine import markdown

from foretune.device import available_cores
from foretune.measurement import Measurement
from foretune.plan import PlanRequest, Requirements, Workload, describe_model, plan
from foretune.plan.cost.operator_predictor import TrainedPredictorCache
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.describe.catalog import resolve_system
from foretune.plan.describe.formats import Formats
from foretune.plan.prove.command import UserCommand
from foretune.plan.prove.load import Load
from foretune.plan.prove.prediction import (
    FIRST_SPREAD,
    NATIVE_HOST,
    Observation,
    Promise,
    ServerPredictor,
)
from foretune.plan.prove.prover import Budget, Prover
from foretune.plan.prove.score import best_load
from foretune.plan.prove.searcher import Correct, CorrectedSearcher, prior_of_scores
from foretune.plan.prove.setting import Setting, SettingSpace, around
from foretune.plan.prove.trial import PlainFigures, stored_figures, trial_problem
from foretune.plan.prove.trial_runner import TrialLimits, TrialRunner
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.search.factory import make_searcher
from foretune.search.loop import run, search
from foretune.search.searcher import AskTell
from foretune.search.stopping import Stopping
from foretune.space import Configuration
from foretune.tune.store.fallible import FallibleStore
from foretune.tune.store.store import Store
from foretune.tune.store.subject import Subject

STARTS = (1, 2, 4, 6)
"""Numbers of starts after which the searches are compared."""
OTHER_FIRSTS = 4
"""Settings that take the place of the plan's own as the first."""
SEEDS = 20
"""Repeats of each replayed search."""
BLIND = ("random", "tpe", "surrogate")
"""Searchers without the plan's predictor."""
FIGURES = ("ttft_ms", "tpot_ms", "tokens_per_s")
NO_LIMITS = Requirements()
PromiseOf = Callable[[Setting, Load], Promise]
"""Setting and load -> what is promised."""


@dataclass
class Recorded:
    """Settings that were all measured."""

    settings: SettingSpace
    loads: Sequence[Load]
    rows: dict[Configuration, Measurement]
    requirements: Requirements = NO_LIMITS

    def under(self, requirements: Requirements) -> "Recorded":
        """Return the same measurements, scored under limits."""
        rows = {}
        for config, row in self.rows.items():
            figures = stored_figures(row, list(self.loads))
            by_name = {load.key: shown for load, shown in figures.items()}
            score = best_load(by_name, requirements)[1] if row.ok else row.time_ms
            rows[config] = replace(row, time_ms=score)
        return Recorded(self.settings, self.loads, rows, requirements)

    def score(self, config: Configuration) -> float:
        """Return the recorded score of a setting; infinite if it failed."""
        row = self.rows[config]
        return row.time_ms if row.ok else float("inf")

    @property
    def best(self) -> float:
        """The best score of all settings."""
        return min(map(self.score, self.rows))


def main() -> None:
    """Measure what is missing, and print the tables."""
    arguments = _parse()
    best, clocks = _planned_deployment(arguments)
    maker = UserCommand(arguments.command)
    given = {
        name: [int(value) for value in values.split(",")]
        for name, _, values in (text.partition("=") for text in arguments.flag)
    }
    settings = around([best], maker.knobs, given, cores=available_cores())
    workload = best.workload
    loads = [Load(workload, concurrency=int(n)) for n in arguments.loads.split(",")]
    arguments.out.mkdir(parents=True, exist_ok=True)
    runner = TrialRunner(
        maker,
        loads,
        vocab=best.model.vocab,
        folder=arguments.out,
        limits=TrialLimits(start_s=arguments.start_limit, repeats=arguments.repeats),
    )
    recorded = _measure_all(settings, runner, arguments.out, arguments.passes)

    print(_promises(recorded, clocks))
    for requirements in (NO_LIMITS, *map(_parse_limits, arguments.limits)):
        print(f"\nlimits: TTFT {requirements.ttft_ms:g} ms, TPOT {requirements.tpot_ms:g} ms")
        print(_searches(recorded.under(requirements), clocks, runner))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder with a config.json")
    parser.add_argument("--command", required=True)
    parser.add_argument("--formats", default="fp32/fp32")
    parser.add_argument("--isl", type=int, default=64)
    parser.add_argument("--osl", type=int, default=16)
    parser.add_argument("--loads", default="1,4,16")
    parser.add_argument("--flag", action="append", default=[], help="requests=1,2,4,8,16")
    parser.add_argument("--limits", action="append", default=[], help="TTFT/TPOT ms: 500/60")
    parser.add_argument("--operators", type=Path)
    parser.add_argument("--passes", type=int, default=1, help="starts of each setting")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each load")
    parser.add_argument("--start-limit", type=float, default=600)
    parser.add_argument("--out", type=Path, default=Path("proved"))
    return parser.parse_args()


def _parse_limits(text: str) -> Requirements:
    """Parse limits of TTFT and TPOT in milliseconds, joined by a slash."""
    ttft, _, tpot = text.partition("/")
    return Requirements(ttft_ms=float(ttft), tpot_ms=float(tpot))


def _planned_deployment(arguments: argparse.Namespace) -> tuple[Deployment, StepTimerFactory]:
    """Return the plan's deployment at the largest load, and the times of operators."""
    weights, _, cache = arguments.formats.partition("/")
    request = PlanRequest(
        model=describe_model(arguments.model),
        systems=(resolve_system("local"),),
        gpus=1,
        workload=Workload(arguments.isl, arguments.osl),
        formats=(Formats(weights, kv=cache or "bf16"),),
    )
    clocks = StepTimerFactory(find_tables(arguments.operators), TrainedPredictorCache())
    found = plan(request, clocks)
    most = max(int(n) for n in arguments.loads.split(","))
    best = replace(found.deployment(found.best), concurrency=most)
    return best, clocks


def _measure_all(settings: SettingSpace, runner: TrialRunner, out: Path, passes: int) -> Recorded:
    """Start every setting that the record lacks, in as many passes over all of them as asked.

    A busy machine drifts for minutes. The passes give all settings a share of it, and the median
    of each figure leaves out the worst of it.
    """
    store = Store(out / "trials.db")
    problem = trial_problem(list(runner.loads), NO_LIMITS)
    order = [settings.planned, *(c for c in settings.space if c != settings.planned)]
    measured: dict[Configuration, list[Measurement]] = {config: [] for config in order}
    for number in range(passes):
        subject = Subject("serve", runner.maker.identity, "this machine", f"pass {number + 1}")
        rows = {m.config: m for m in store.measurements(subject, problem)}
        for config in order:
            if config not in rows:
                begun = time.monotonic()
                trial = runner.run(config, settings.setting(config), {})
                rows[config] = trial.to_measurement(problem, subject.device, NO_LIMITS)
                store.put(subject, [rows[config]])
                row = rows[config]
                told = f"{row.time_ms:.1f} ms per token" if row.ok else row.error
                seconds = time.monotonic() - begun
                print(f"{dict(config)}: {told}, {seconds:.0f} s", flush=True)
            measured[config].append(rows[config])
    print(_repeatability(measured))
    known = {config: _median_row(rows) for config, rows in measured.items()}
    return Recorded(settings, runner.loads, known).under(NO_LIMITS)


def _median_row(rows: Sequence[Measurement]) -> Measurement:
    """Return one row with the median of every figure; a failed one if it ever failed."""
    failed = next((row for row in rows if not row.ok), None)
    if failed is not None:
        return failed
    names = rows[0].static
    static = {name: median(row.static[name] for row in rows) for name in names}
    return replace(rows[0], static=static)


def _repeatability(measured: Mapping[Configuration, Sequence[Measurement]]) -> str:
    """Return how far the passes lie apart."""
    ratios = []
    for rows in measured.values():
        times = [row.time_ms for row in rows if row.ok]
        if len(times) > 1:
            ratios.append(max(times) / min(times))
    if not ratios:
        return "one pass: how far repeats lie apart is unknown"
    return f"passes lie {median(ratios):.2f} × apart (median), at most {max(ratios):.2f} ×"


def _promises(recorded: Recorded, clocks: StepTimerFactory) -> str:
    """Return promise and proof of the plan's setting, before and after it was started."""
    predictor = ServerPredictor(clocks, host=NATIVE_HOST)
    planned = recorded.settings.planned
    setting = recorded.settings.setting(planned)
    shown = stored_figures(recorded.rows[planned], list(recorded.loads))
    before = {load: predictor.promise(setting, load) for load in recorded.loads}
    predictor.learn([Observation(setting, load, vars(of)) for load, of in shown.items()])

    # The other settings were not seen: are they promised better?
    lines = []
    for load in recorded.loads:
        cells = [f"{getattr(before[load], name):,.1f}" for name in FIGURES]
        proofs = [f"{getattr(shown[load], name):,.1f}" for name in FIGURES]
        lines.append(["plan's setting", load.name, *_beside(cells, proofs)])
    uncorrected = ServerPredictor(clocks, host=NATIVE_HOST)
    by_name = {
        "as planned": uncorrected.promise,
        "one factor on all times": _one_factor(uncorrected, setting, shown),
        "three factors of a step": predictor.promise,
    }
    for name, promise in by_name.items():
        errors = _errors(recorded, promise)
        texts = [f"{100 * errors[figure]:.0f} %" for figure in FIGURES]
        lines.append([f"error of other settings: {name}", "all", *texts])
    return markdown(["", "load", "TTFT ms", "TPOT ms", "tokens/s"], lines)


def _beside(promised: Sequence[str], proven: Sequence[str]) -> list[str]:
    return [f"{a} → {b}" for a, b in zip(promised, proven, strict=True)]


def _one_factor(
    predictor: ServerPredictor, setting: Setting, shown: Mapping[Load, PlainFigures]
) -> PromiseOf:
    """Return the simplest correction: the mean error of the plan's setting, on all figures."""
    logs = [
        log(of.tpot_ms / predictor.promise(setting, load).tpot_ms) for load, of in shown.items()
    ]
    factor = exp(fmean(logs))

    def promise(other: Setting, load: Load) -> Promise:
        planned = predictor.promise(other, load)
        return Promise(
            ttft_ms=planned.ttft_ms * factor,
            tpot_ms=planned.tpot_ms * factor,
            tokens_per_s=planned.tokens_per_s / factor,
        )

    return promise


def _errors(recorded: Recorded, promise_of: PromiseOf) -> dict[str, float]:
    """Return the median relative error of the settings other than the plan's."""
    errors: dict[str, list[float]] = {name: [] for name in FIGURES}
    for config, row in recorded.rows.items():
        if config == recorded.settings.planned or not row.ok:
            continue
        setting = recorded.settings.setting(config)
        for load, shown in stored_figures(row, list(recorded.loads)).items():
            promise = promise_of(setting, load)
            for name in FIGURES:
                measured = getattr(shown, name)
                errors[name].append(abs(getattr(promise, name) / measured - 1.0))
    return {name: median(values) for name, values in errors.items()}


def _searches(recorded: Recorded, clocks: StepTimerFactory, runner: TrialRunner) -> str:
    """Return the share of the best score that each search reaches after some starts.

    Every search begins with the plan's own setting, and then again with others in its place: a plan
    may be wrong.
    """
    space = recorded.settings.space
    configs = list(recorded.rows)
    others = configs[1 :: max(len(configs) // OTHER_FIRSTS, 1)]
    firsts = {"the plan's own": [recorded.settings.planned], "others": others}
    plans = {
        "the plan, as it is": _uncorrected(recorded, clocks),
        "the corrected plan": _corrected(recorded, clocks, runner),
    }

    lines = []
    for title, first_settings in firsts.items():
        for kind in BLIND:
            shares = [
                _replay(recorded, make_searcher(kind, space, seed=seed), first)
                for first in first_settings
                for seed in range(SEEDS)
            ]
            lines.append([f"from {title}: {kind}, no predictor", *_means(shares)])
        for name, correct in plans.items():
            shares = [
                _replay(recorded, CorrectedSearcher(space, correct), first)
                for first in first_settings
            ]
            lines.append([f"from {title}: {name}", *_means(shares)])
    heading = f"{len(recorded.rows)} settings"
    return markdown([heading, *(f"after {n}" for n in STARTS)], lines)


def _means(shares: Sequence[Sequence[float]]) -> list[str]:
    return [f"{fmean(of_seed[i] for of_seed in shares):.3f}" for i in range(len(STARTS))]


def _uncorrected(recorded: Recorded, clocks: StepTimerFactory) -> Correct:
    """Return a prior that no trial corrects: the surrogate alone learns its errors."""
    predictor = ServerPredictor(clocks, host=NATIVE_HOST)
    settings = recorded.settings
    scores = []
    for config in settings.space:
        promises = {
            load.key: predictor.promise(settings.setting(config), load) for load in recorded.loads
        }
        scores.append(best_load(promises, recorded.requirements)[1])
    prior = prior_of_scores(scores, FIRST_SPREAD, p_valid=np.ones(len(scores)))
    return lambda measurements: prior


def _corrected(recorded: Recorded, clocks: StepTimerFactory, runner: TrialRunner) -> Correct:
    """Return the product's prior, which every trial corrects."""
    prover = Prover(
        settings=recorded.settings,
        runner=runner,
        predictor=ServerPredictor(clocks, host=NATIVE_HOST),
        requirements=recorded.requirements,
        plan_promises={},
        budget=Budget(),
        subject=Subject("serve", "replay", "this machine", "benchmark"),
        store=FallibleStore(False),
    )
    return prover.correct


def _replay(
    recorded: Recorded, searcher: AskTell[Configuration], first: Configuration
) -> list[float]:
    """Return the best score over the found one after each number of `STARTS`."""
    found: list[float] = []

    def measure(configs: tuple[Configuration, ...]) -> list[Measurement]:
        found.extend(recorded.score(config) for config in configs)
        return [recorded.rows[config] for config in configs]

    stopping = Stopping(min(STARTS[-1], len(recorded.rows)))
    run(search(searcher, stopping, first=[first]), measure)
    # A search that expects nothing better stops early, and keeps what it has.
    return [recorded.best / min(found[:n]) for n in STARTS]


if __name__ == "__main__":
    main()
