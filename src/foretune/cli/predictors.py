"""``foretune train`` and ``evaluate``: predictors from run tables, and their validation."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options, run_files
from foretune.cli.csv_files import CsvOptions
from foretune.cli.output import METRIC_COLUMNS, Output, metric_rows
from foretune.errors import PredictorError, UsageError, require_known
from foretune.registry import load, registered
from foretune.values import percent

if TYPE_CHECKING:
    import pandas as pd

    from foretune.models.predictor import Predictor
    from foretune.models.training import Training

UNUSABLE_SPLIT_REASONS = {
    "random": "there are too few rows",
    "grouped": "there is only one group, or there are too few rows",
    "device": "there is only one device, too few rows, or a device without specifications",
    "time": "the runs have no recorded_at, or all the same",
}
CURVE = "curve"
WORK_KEYS = ("flops", "bytes", "blocks")
MAX_EXPLAINED = 10_000
"""How many rows `evaluate` compares with the training range."""
MIN_POWER_ROWS = 40
"""With fewer metered runs, validation says little of power."""
MAX_SEEN_SHARE = 0.5
"""With more held-out rows of problems that were seen in training, scores are too good."""
DEFAULT_SPLITS = {"quick": ("grouped",), "full": ("random", "grouped")}
"""Validation level -> the splits that it holds out by default."""
DRIFTED_EXIT_CODE = 1
TARGET = typer.Option([], help="time_ms or power_w (repeatable). Default: what the runs hold.")
SIZES = typer.Option(
    "", help="Columns of a CSV file that are the problem; the others are the configuration."
)
GROUP = typer.Option("problem", help="Hold out together: problem, device or columns (problem.N,…).")
VALIDATE = typer.Option(
    "quick",
    help="none, quick (hold out a fifth, once) or full (every fold); or what to hold out: "
    "random, grouped, device, time, joined by commas; curve adds the learning curve.",
)
EXTRA_COLUMNS = typer.Option(
    [], help="Also learn from static (compiled code), counter (profiler) or simulated columns."
)
WORK = typer.Option(
    [],
    help="Work of a launch, from columns: 'flops=2*M*N*K', 'bytes=2*(M*K + K*N + M*N)', "
    "'blocks=-(-M//BLOCK_M) * -(-N//BLOCK_N)' (repeatable).",
)
READ_AS = typer.Option(
    "any",
    help="What an unknown kernel is: gemm, attention_prefill, attention_decode, moe, norm or "
    "all_reduce; any: what fits the runs and the names of their sizes; or none.",
)
RESUME = typer.Option(None, help="Continue this predictor with its rows, model, targets and seed.")


def train(
    context: typer.Context,
    files: list[Path] = run_files.RUNS,
    model: str = options.MODEL,
    target: list[str] = TARGET,
    map_: list[str] = run_files.MAP,
    separator: str = run_files.SEPARATOR,
    decimal: str = run_files.DECIMAL,
    sizes: str = SIZES,
    ignore: list[str] = run_files.IGNORE,
    device: str = run_files.DEVICE,
    group: str = GROUP,
    validate: str = VALIDATE,
    extra_columns: list[str] = EXTRA_COLUMNS,
    work: list[str] = WORK,
    read_as: str = READ_AS,
    kernel: str = run_files.ONLY_KERNEL,
    resume: str | None = RESUME,
    mlflow: str = typer.Option(None, help="Also log to this MLflow: sqlite:///mlflow.db or a URL."),
    out: Path = typer.Option(..., help="Folder for the predictor."),
) -> None:
    """Train a predictor, and validate it on held-out runs."""
    run_files.require_files(files)
    require_known("model", model, registered("models"))

    from foretune.models.card import CARD, require_writable_folder
    from foretune.models.predictor import require_single_kernel
    from foretune.models.saved.lookup import read_predictor
    from foretune.models.splits import group_columns, group_numbers
    from foretune.models.target_names import TARGETS
    from foretune.models.training import train_predictor

    output = Output(options.root_options(context).as_json)
    load("models", model)
    require_known("target", target, TARGETS)
    validation = _parse_validate(validate)
    work_of_key = options.parse_key_values(work, "--work", "KEY=VALUE", WORK_KEYS)
    resumed = None
    if resume is not None:
        _check_resume(context)
        resumed = read_predictor(resume)

    # What is learned from, and by which model; --resume goes on with a predictor and its runs.
    csv_options = CsvOptions(
        kernel=kernel,
        sources=options.parse_key_values(map_, "--map"),
        sizes=[name.strip() for name in sizes.split(",") if name.strip()],
        ignored=ignore,
        device=device,
        separator=separator,
        decimal=decimal,
        finds_roles=True,
    )
    runs = run_files.read_tables(files, csv_options, resumed)
    kernel_name = require_single_kernel(runs)
    if resumed is None:
        template = _new_predictor(context, kernel_name, work_of_key)
    else:
        template = resumed
        runs = _append_runs(resumed, runs, folder=str(resume))

    # What could be wrong is found before training.
    group_columns(runs, group)
    n_groups = group_numbers(runs, group).max(initial=0) + 1
    if validation.with_curve and n_groups == 1:
        raise UsageError("--validate curve holds groups out, and these runs are of one group")
    replaces = (out / CARD).exists()
    require_writable_folder(out)

    with _mlflow_logger(mlflow, template.model, runs) as log:
        done = train_predictor(
            runs,
            model=template.model,
            targets=template.targets,
            group=group,
            seed=template.seed,
            kernel=template.kernel,
            splits=validation.splits or None,
            extra_columns=template.extra_columns,
            parameters=template.parameters,
            read_as=template.read_as,
            validate=validation.level,
        )
        done.predictor.save(out)
        log(done, out)
    summary = _show_training(output, done, runs, validation.splits)
    curves = _learning_curves(output, done.predictor, group) if validation.with_curve else {}
    replaced = ", which replaced another one" if replaces else ""
    output.say(f"\npredictor: {out}{replaced}")
    output.result({"out": str(out), **summary, "validate": validation.level, "curves": curves})


@dataclass(frozen=True)
class _Validation:
    """What ``--validate`` says: how thoroughly, on which splits (by default the level's own)."""

    level: Any
    splits: list[Any]
    with_curve: bool


def _parse_validate(text: str) -> _Validation:
    """Parse a level and splits, joined by commas; of several levels, the last one counts."""
    from foretune.models.splits import SPLITS
    from foretune.models.validation.cross_validation import VALIDATION_LEVELS

    parts = [part.strip() for part in text.split(",")]
    require_known("validation", parts, (*VALIDATION_LEVELS, *SPLITS, CURVE))
    levels = [part for part in parts if part in VALIDATION_LEVELS]
    return _Validation(
        level=levels[-1] if levels else "quick",
        splits=[part for part in parts if part in SPLITS],
        with_curve=CURVE in parts,
    )


def _new_predictor(
    context: typer.Context, kernel: str, work_of_key: Mapping[str, str]
) -> "Predictor":
    """Return an untrained predictor with the command's options; ``kernel`` is that of the runs."""
    from foretune.features.families.user_defined import UserDefinedCost
    from foretune.models.predictor import Predictor

    given = context.params
    expressions = [work_of_key.get(key, "") for key in WORK_KEYS]
    return Predictor(
        model=given["model"],
        targets=tuple(given["target"]) or None,
        seed=options.root_options(context).seed,
        kernel=UserDefinedCost.from_expressions(kernel, *expressions),
        extra_columns=tuple(given["extra_columns"]),
        read_as=given["read_as"],
    )


def _check_resume(context: typer.Context) -> None:
    keeps = "--resume keeps the predictor's"
    options.reject_options(context, ("model", "target", "extra_columns", "work", "read_as"), keeps)
    if options.root_options(context).given_seed is not None:
        raise UsageError(f"{keeps} seed: leave --seed out")


def _show_training(
    output: Output, done: "Training", runs: "pd.DataFrame", splits: list[str]
) -> dict[str, Any]:
    """Print the scores of a training and what they rest on; return them for the JSON object."""
    from foretune.datasets.schema import columns_of
    from foretune.features.readings import RenamedFamily
    from foretune.models.validation.metrics import noise_floor

    weakness = done.validation.weakness
    if weakness:
        output.say(weakness)
    is_guessed = isinstance(done.predictor.features_.family, RenamedFamily)
    if not columns_of(runs, "config") and not is_guessed:
        output.say("no column is configuration: for a CSV file, name its sizes with --sizes")
    for target, scores in done.scores.items():
        if scores:
            output.table(f"predicting {target}", METRIC_COLUMNS, metric_rows(scores))
    choice = done.validation.energy_choice
    for note in filter(None, (str(done.validation), str(choice or ""), *_notes(done, splits))):
        output.say(note)
    floor = noise_floor(runs)
    if not math.isnan(floor):
        output.say(f"noise floor of time_ms, from repeats: {percent(floor)}")
    for target, share in done.validation.seen_problem_share.items():
        if share > MAX_SEEN_SHARE and "grouped" in done.scores[target]:
            output.say(
                f"{percent(share)} of the randomly held-out rows for {target} have a problem seen "
                "in training\ntoo: use the grouped split"
            )
    answer = {**done.metrics(), "noise_floor": floor, "training": done.predictor.training_}
    answer["energy_choice"] = choice and vars(choice)
    if weakness:
        answer["weakness"] = weakness
    return answer


def _learning_curves(output: Output, predictor: "Predictor", group: str) -> dict[str, Any]:
    """Print the learning curve of each target, and return its points."""
    from foretune.models.validation.evaluation import learning_curve

    curves: dict[str, Any] = {}
    for target in predictor.targets_:
        curve = learning_curve(predictor, predictor.runs_, target, group)
        points = curve.to_dict("records")
        rows = []
        for point in points:
            n_runs, *scores = point.values()
            rows.append([f"{n_runs:,}", *map(percent, scores)])
        output.table(f"learning curve, {target}", ("runs", "MAPE", "median", "90% int."), rows)
        curves[target] = points
    return curves


def evaluate(
    context: typer.Context,
    predictor: str = options.PREDICTOR,
    files: list[Path] = run_files.RUNS,
    kernel: str = run_files.ONLY_KERNEL,
    map_: list[str] = run_files.MAP,
    device: str = run_files.DEVICE,
    drift: bool = typer.Option(
        False, "--drift", help="Only check if the predictor is still valid; exit code 1 if not."
    ),
) -> None:
    """Score a saved predictor on runs it never saw."""
    run_files.require_files(files)

    from foretune.models.saved.lookup import read_predictor
    from foretune.models.validation.evaluation import evaluate_predictor, score_simulator

    output = Output(options.root_options(context).as_json)
    loaded = read_predictor(predictor)
    runs = run_files.read_files(files, kernel, map_, loaded, device)
    if drift:
        _show_drift(output, loaded, runs)
        return

    scores = evaluate_predictor(loaded, runs)
    _say_learned_from(output, loaded, runs)
    _say_outside(output, loaded, runs.head(MAX_EXPLAINED))

    # A simulator's cycles are a second model of the time.
    simulator_scores = score_simulator(runs)
    simulated = {"simulated.cycles": simulator_scores} if simulator_scores else {}
    for target, metrics in scores.items():
        models = {str(predictor): metrics}
        if target == "time_ms":
            models |= simulated
        rows = metric_rows({"these runs": models})
        output.table(f"predicting {target}", METRIC_COLUMNS, rows)
    output.result({**scores, **simulated})


def _say_outside(output: Output, predictor: "Predictor", runs: "pd.DataFrame") -> None:
    """Say how many runs are outside the training range, with an example per column."""
    lines = predictor.explain_outside(runs)
    if lines.empty:
        return
    n_outside = lines["row"].nunique()
    output.say(f"{n_outside:,} of these {len(runs):,} runs are outside the training range:")
    for column, group in lines.groupby("column", sort=False):
        first = group.iloc[0]
        example = f"{column}={first['value']}: {first['reason']}"
        such_as = f"{len(group):,} such as " if len(group) > 1 else ""
        output.say(f"  {such_as}{example}")


def _say_learned_from(output: Output, predictor: "Predictor", runs: "pd.DataFrame") -> None:
    from foretune.models.validation.evaluation import count_seen_before

    n_seen = count_seen_before(predictor, runs)
    if n_seen:
        output.say(
            f"{n_seen:,} of these {len(runs):,} runs were in training: their errors say nothing "
            "about new runs"
        )


def _show_drift(output: Output, predictor: "Predictor", runs: "pd.DataFrame") -> None:
    """Print whether a predictor is still valid; exit with 1 if not."""
    from foretune.models.validation.drift import check_drift

    drift_of_target = check_drift(predictor, runs)
    _say_learned_from(output, predictor, runs)
    for target, d in drift_of_target.items():
        rows = [
            ["inside the interval", percent(d.coverage), f"at least {percent(d.min_coverage)}"],
            ["median error", percent(d.median_error), f"about {percent(d.expected_error)}"],
            ["bias", percent(d.bias), f"up to {percent(d.bias_limit)}"],
            [f"change of {d.repeats} repeated runs", percent(d.change), ""],
        ]
        output.table(f"{target} of {d.rows} runs", ("", "found", "expected"), rows)
    for target, d in drift_of_target.items():
        output.say("\n  ".join([f"{target}: {d.verdict}", *d.reasons]))

    has_drifted = any(d.reasons for d in drift_of_target.values())
    verdicts = {}
    for target, d in drift_of_target.items():
        verdicts[target] = {"verdict": d.verdict, **vars(d)}
    output.result({"verdict": "drifted" if has_drifted else "ok", "targets": verdicts})
    if has_drifted:
        output.say("'foretune train --resume' continues the predictor with these runs")
        raise typer.Exit(DRIFTED_EXIT_CODE)


def _notes(done: "Training", splits: list[str]) -> "Iterator[str]":
    """Yield which figures of a training are missing, and why."""
    from foretune.features.families_of_runs import explain_missing_roofline
    from foretune.features.readings import RenamedFamily
    from foretune.models.targets import measured_rows

    features = done.predictor.features_
    if isinstance(features.family, RenamedFamily):
        yield str(features.family.reading)
    elif features.family is None:
        reason = explain_missing_roofline(done.predictor.kernel_name_, done.predictor.runs_)
        if reason:
            yield f"no roofline: {reason}"
    elif not features.roofline_known_:
        yield "no roofline: the runs lack their device's peak rates (device.…) or a size"
    n_metered = len(measured_rows("power_w", done.predictor.runs_))
    if "power_w" in done.predictor.targets_ and n_metered < MIN_POWER_ROWS:
        yield f"power_w: ± 30 %, as only {n_metered} runs have it; {MIN_POWER_ROWS} tell more"

    if done.validation.level == "none":
        return
    for split in splits or DEFAULT_SPLITS[done.validation.level]:
        targets = [target for target, scores in done.scores.items() if split not in scores]
        if targets:  # few rows may have power
            of_some = f" of {', '.join(targets)}" if len(targets) < len(done.scores) else ""
            yield f"not held out: {split}{of_some}: {UNUSABLE_SPLIT_REASONS[split]}"


def _append_runs(predictor: "Predictor", new: "pd.DataFrame", folder: str) -> "pd.DataFrame":
    import pandas as pd

    others = sorted(set(map(str, new["kernel"])) - {predictor.kernel_name_})
    if others:
        raise PredictorError(
            f"{folder} is for {predictor.kernel_name_!r}, the new runs are of {', '.join(others)}: "
            "choose with --kernel, or train without --resume"
        )
    if predictor.calibration_.devices:
        devices = ", ".join(predictor.calibration_.devices)
        raise PredictorError(
            f"{folder} was calibrated on {devices}, whose runs are not in training: resume the "
            "predictor it was made from, and also give those runs"
        )
    return pd.concat([predictor.runs_, new], ignore_index=True)


@contextmanager
def _mlflow_logger(
    uri: str | None, model: str, runs: "pd.DataFrame"
) -> "Iterator[Callable[[Training, Path], None]]":
    """Open an MLflow run at ``uri`` and yield a function that logs a training to it."""
    if uri is None:
        yield lambda training, folder: None
        return
    from foretune.models.predictor import require_single_kernel
    from foretune.tune.mlflow.tracking import Tracker

    kernel = require_single_kernel(runs)
    tracker = Tracker(uri)  # before training: an unreachable server fails at once
    run_id = tracker.open_run(f"{kernel}: train {model}", None, {"foretune.kernel": kernel})
    with tracker.running(run_id):
        yield lambda training, folder: tracker.log_training(run_id, training, folder)
