"""``foretune campaign``: the main job, its report and its tracking."""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.cli.carbon import CARBON, check_carbon, launch_energies, show_carbon
from foretune.cli.output import METRIC_COLUMNS, Output, format_config, metric_rows
from foretune.errors import require_known
from foretune.objective import Objective
from foretune.problem import Problem, shared_values, shown_values
from foretune.registry import load, registered
from foretune.support.console import progress_bar
from foretune.support.lazy import require
from foretune.values import short_number

if TYPE_CHECKING:
    from foretune.models.validation.weakness import SplitScores
    from foretune.tune.campaign.observer import Campaign
    from foretune.tune.job import SearchOptions
    from foretune.tune.results import TuneResult

NEEDS_UI = " (needs extra 'ui')"
SETTLE_ADVICE = "--wait-quiet SECONDS waits for a quiet machine before the comparison"


def campaign(
    context: typer.Context,
    kernel: str = options.KERNEL,
    device: str = options.DEVICE,
    runner: str = options.RUNNER,
    ray_address: str | None = options.RAY_ADDRESS,
    preset: str = typer.Option("quick", help="quick, or full (13 times the runs)."),
    problem: list[str] = typer.Option(
        [], help="Problem to tune (repeatable). Default: two not trained on."
    ),
    objective: str = options.OBJECTIVE,
    model: str = options.MODEL,
    searcher: str = options.SEARCHER,
    budget: str = typer.Option(
        "", help="Per search, as in 'tune'. Default: the preset's.", show_default=False
    ),
    predictor: str = typer.Option("none", help="Start from this predictor, as in 'tune'."),
    out: Path = typer.Option(Path("campaigns"), help="Folder that holds the campaigns."),
    report: Path | None = typer.Option(None, help="Only rewrite this campaign's report."),
    track: Path | None = typer.Option(
        None, help="Only track this campaign's folder in MLflow, at $MLFLOW_TRACKING_URI."
    ),
    carbon: float | None = CARBON,
) -> None:
    """Profile a kernel, train a predictor, tune other problems, report.

    MLflow tracks everything. An interrupted campaign continues if you run the same command again.
    """
    root = options.root_options(context)
    output = Output(root.as_json)
    check_carbon(carbon)
    if kernel:  # before imports that take seconds
        print(f"campaign of {kernel}: profile, train, tune, verify", file=sys.stderr, flush=True)
    if report is not None or track is not None:
        _revisit(output, report, track)
        return
    # What can be wrong with the line is checked before imports that take seconds.
    chosen = options.read_kernel(kernel)
    parsed_objective = Objective.parse(objective)
    stop = options.parse_budget(budget)
    require_known("model", model, registered("models"))
    require_known("searcher", searcher, registered("searchers"))

    from foretune.tune.campaign.campaign import PRESETS, run_campaign

    search: SearchOptions = {**root.search, **stop, "searcher": searcher}
    require_known("preset", preset, PRESETS)
    load("models", model)
    load("searchers", searcher)
    problems = options.read_problems(chosen, problem) if problem else None
    with (
        options.make_runner(context, chosen, PRESETS[preset].timing()) as running,
        progress_bar() as search["progress"],
    ):
        done = run_campaign(
            chosen,
            running,
            PRESETS[preset],
            problems=problems,
            objective=parsed_objective,
            model=model,
            predictor=predictor,
            out=out,
            **search,
        )
    _show(output, done, kernel)
    emitted = show_carbon(output, carbon, launch_energies(list(done.results)), "launches")
    output.result({**done.summary(), **emitted})


def _revisit(output: Output, report: Path | None, track: Path | None) -> None:
    """Rewrite the report of a finished campaign, or track the campaign."""
    from foretune.tune.campaign.finished import notify_observers

    written: dict[str, str] = {}
    if report is not None:
        written["report"] = str(notify_observers(report, ["report"]).report)
        output.say(f"report: {written['report']}")
    if track is not None:
        require("mlflow", "track", "--track")
        written["mlflow_run_id"] = str(notify_observers(track, ["mlflow"]).mlflow_run_id)
        output.say(f"MLflow run {written['mlflow_run_id']}")
    output.result(written)


def show_results(output: Output, results: "list[TuneResult]") -> None:
    """Print the table of winners of one kernel; then what is open, and what disturbed them."""
    first = results[0]
    shared_sizes = shared_values([result.problem for result in results])
    names = [_problem_name(result, shared_sizes) for result in results]
    library = next((result.library for result in results if result.library), None)

    columns = ["problem", f"default {first.objective.unit}", f"best {first.objective.unit}"]
    columns.append("speedup (99 %)")
    if library is not None:
        columns.append(f"vs {library.name}")
    rows = []
    for name, result in zip(names, results, strict=True):
        best = result.busy_win or result.winner
        row = [name, short_number(result.baseline.value), short_number(best.value), _gain(result)]
        if library is not None:
            compared = result.versus_library
            row.append("–" if compared is None else compared.ratio_text)
        rows.append(row)
    title = [first.kernel, Problem(shared_sizes).shown, "on", first.device]
    output.table(" ".join(filter(None, title)), columns, rows)

    _say_open(output, names, results)
    _say_load(output, results)


def _problem_name(result: "TuneResult", shared_sizes: Mapping[str, Any]) -> str:
    """Return the sizes of a result's problem that not all problems share."""
    own_sizes = {name: size for name, size in result.problem.items() if name not in shared_sizes}
    return format_config(shown_values(own_sizes))


def _gain(result: "TuneResult") -> str:
    """Return the verified gain in words; without one, the verdict."""
    if result.busy_win is not None:
        return f"{result.busy_win.ratio_text} while busy"
    if result.verified:
        return result.winner.ratio_text
    return result.verdict.replace("_", " ")


def _say_open(output: Output, names: "list[str]", results: "list[TuneResult]") -> None:
    """Say why problems have no verdict, and what settles them."""
    open_problems = [
        (name, result)
        for name, result in zip(names, results, strict=True)
        if result.verdict == "inconclusive"
    ]
    for name, result in open_problems:
        if len(results) > 1:
            output.say(f"{name}:")
        output.say(result.explanation)
        if result.noise.disturbed and result.busy_win is None:
            output.say(result.noise.disturbed)
    if open_problems:
        output.say(SETTLE_ADVICE)


def _say_load(output: Output, results: "list[TuneResult]") -> None:
    """Say which load disturbed verdicts, also wins: the one that had most of it speaks for all."""
    disturbed = [
        result.noise
        for result in results
        if result.verdict != "inconclusive" and result.noise.disturbed
    ]
    if disturbed:
        most = max(disturbed, key=lambda noise: noise.others)
        output.say(f"verified while {most.disturbed}; --wait-quiet SECONDS waits")


def _show(output: Output, done: "Campaign", kernel: str) -> None:
    """Print the campaign; ``kernel`` is its name on the command line."""
    weakness = done.training.validation.weakness
    if weakness:
        output.say(weakness)
    for target, scores in done.training.scores.items():
        shown = {split: _with_best_baseline(of_split) for split, of_split in scores.items()}
        output.table(f"predicting {target}", METRIC_COLUMNS, metric_rows(shown))
    output.say(f"{done.training.validation}; the report has all baselines\n")
    show_results(output, list(done.results))
    output.say(f"\n{done.headline}")

    output.say(f"report     {done.report}")
    output.say(f"predictor  {done.folder}")
    if done.mlflow_model:
        output.say(f"           {done.mlflow_model}")
    if done.mlflow_uri is not None:
        output.say(f"MLflow     {done.mlflow_uri}, run {done.mlflow_run_id}")
        if not done.mlflow_uri.startswith("http"):
            needs_ui = "" if find_spec("flask") else NEEDS_UI
            command = f"mlflow ui --backend-store-uri {done.mlflow_uri}{needs_ui}"
            output.say(f"           view it with: {command}")
    output.say(f"took       {done.seconds:.0f} s")
    output.say(f"next       {_next_command(done, kernel)}")


def _with_best_baseline(scores: "SplitScores") -> "SplitScores":
    """Return the predictor's scores and those of its best baseline."""
    from foretune.models.validation.weakness import best_baseline

    shown = [next(iter(scores)), best_baseline(scores)]
    return {name: scores[name] for name in shown if name is not None}


def _next_command(done: "Campaign", kernel: str) -> str:
    """Return the command that goes on with what the campaign learned.

    It settles the first problem without a verdict; else it tunes a problem of the user's.
    """
    for result in done.results:
        if result.verdict == "inconclusive":
            return (
                f"foretune tune {kernel} --problem {result.problem.shown} "
                f"--predictor {done.folder} --wait-quiet 600 --verify-seconds 120"
            )
    sizes = ",".join(f"{name}=…" for name in done.results[0].problem)
    return f"foretune tune {kernel} --problem {sizes} --predictor {done.folder}"
