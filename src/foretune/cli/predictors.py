"""``foretune train``, ``evaluate`` and ``predict``: predictors offline."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options
from foretune.cli.output import METRIC_COLUMNS, Output, metric_rows, percent
from foretune.cli.run_files import read_files
from foretune.errors import PredictorError, UnknownName, UsageError
from foretune.problem import Problem

if TYPE_CHECKING:
    import pandas as pd

    from foretune.device import Device
    from foretune.models import Predictor, Training
    from foretune.space import Configuration, SearchSpace

UNITS = {"time_ms": "ms", "power_w": "W"}
UNUSABLE_SPLIT_REASONS = {
    "random": "there are too few rows",
    "grouped": "there is one group only, or too few rows",
    "device": "there is one device only, too few rows, or too little is known of some",
    "time": "the runs do not say when they were made (recorded_at), or all at once",
}
MAX_EXPLAINED = 10_000
"""Rows of a table that 'evaluate' says of in what they lie outside of training."""


def train(
    context: typer.Context,
    files: list[Path] = options.RUNS,
    model: str = options.MODEL,
    target: list[str] = typer.Option(
        [], help="time_ms or power_w (repeatable). Default: what the runs hold."
    ),
    map_: list[str] = options.MAP,
    sizes: str = typer.Option(
        "", help="Columns of a CSV file that are the problem; the others are the configuration."
    ),
    group: str = typer.Option(
        "problem", help="Hold out together: problem, device, or columns (problem.N,…)."
    ),
    validate: str = options.VALIDATE,
    split: list[str] = typer.Option(
        [], help="What to hold out: random, grouped, device, time (repeatable)."
    ),
    compiled: bool = typer.Option(False, help="Also learn from static.… columns (compiled code)."),
    flops: str = typer.Option("", help="Operations of a launch, from columns: '2*M*N*K'."),
    bytes_: str = typer.Option("", "--bytes", help="Bytes it moves: '2*(M*K + K*N + M*N)'."),
    blocks: str = typer.Option("", help="Blocks launched: '-(-M//BLOCK_M) * -(-N//BLOCK_N)'."),
    kernel: str = options.ONLY_KERNEL,
    resume: str = typer.Option(
        None,
        help="Continue this predictor with its rows, model, targets and seed.",
    ),
    curve: bool = typer.Option(False, help="Show the learning curve: error by number of runs."),
    mlflow: str = typer.Option(None, help="Also log to this MLflow: sqlite:///mlflow.db or a URL."),
    out: Path = typer.Option(..., help="Folder for the predictor."),
    seed: int = options.SEED,
    as_json: bool = options.JSON,
) -> None:
    """Train a predictor, and validate it on held-out runs."""
    from foretune.features.families.user_defined import UserDefinedCost
    from foretune.models import Predictor, train_predictor
    from foretune.models.predictor import require_single_kernel
    from foretune.models.saved.folder import require_writable_folder
    from foretune.models.saved.lookup import read_predictor
    from foretune.models.targets import TARGETS
    from foretune.models.validation.evaluation import VALIDATION_LEVELS
    from foretune.models.validation.learning_curve import learning_curve
    from foretune.models.validation.noise import noise_floor
    from foretune.models.validation.splits import SPLITS, group_columns
    from foretune.registry import load

    load("models", model)
    _check_known("target", target, TARGETS)
    _check_known("split", split, SPLITS)
    _check_known("validation level", [validate], VALIDATION_LEVELS)
    output = Output(as_json)
    problem = [name.strip() for name in sizes.split(",") if name.strip()]
    runs = read_files(files, kernel, map_, problem=problem)
    work = UserDefinedCost.from_expressions(require_single_kernel(runs), flops, bytes_, blocks)
    template = Predictor(model, tuple(target) or None, seed, work, compiled)  # type: ignore[arg-type]
    if resume is not None:
        fixed_options = ("model", "target", "seed", "compiled", "flops", "blocks")
        options.reject_options(context, fixed_options, "--resume keeps the predictor's")
        template = read_predictor(resume)
        runs = _append_runs(template, runs, resume)
    group_columns(runs, group)
    require_writable_folder(out)
    with _mlflow_logger(mlflow, template.model, runs) as log:
        done = train_predictor(
            runs,
            template.model,
            template.targets,
            group,
            template.seed,
            template.kernel,
            splits=split or None,  # type: ignore[arg-type]
            compiled=template.compiled,
            parameters=template.parameters,
            validate=validate,  # type: ignore[arg-type]
        )
        done.predictor.save(out)
        log(done, out)
    for name, scores in done.scores.items():
        output.table(f"predicting {name}", METRIC_COLUMNS, metric_rows(scores))
    output.say(str(done.validation))
    for line in _notes(done, split):
        output.say(line)
    floor, curves = noise_floor(runs), {}
    if floor == floor:
        output.say(f"noise floor of time_ms, from repeats: {percent(floor)}")
    for name, share in done.validation.seen_problem_share.items():
        if share > 0.5 and "grouped" in done.scores[name]:
            output.say(
                f"{percent(share)} of the randomly held-out rows for {name} have their problem in "
                "training\ntoo: judge by the grouped split"
            )
    if curve:
        for name in done.predictor.targets_:
            points = learning_curve(done.predictor, done.predictor.runs_, name, group)
            curves[name] = points.to_dict("records")
            output.table(
                f"learning curve, {name}",
                ("runs", "MAPE", "median", "90% int."),
                [[f"{p['rows']:,}", *map(percent, list(p.values())[1:])] for p in curves[name]],
            )
    output.say(f"\npredictor: {out}")
    output.result(
        {
            "out": str(out),
            **done.metrics(),
            "validate": validate,
            "noise_floor": floor,
            "curves": curves,
            "training": done.predictor.training_,
        }
    )


def evaluate(
    predictor: str = options.PREDICTOR,
    files: list[Path] = options.RUNS,
    kernel: str = options.ONLY_KERNEL,
    map_: list[str] = options.MAP,
    as_json: bool = options.JSON,
) -> None:
    """Score a saved predictor on runs it never saw."""
    from foretune.models import evaluate_predictor
    from foretune.models.saved.lookup import read_predictor
    from foretune.models.validation.evaluation import count_seen_before

    output = Output(as_json)
    loaded = read_predictor(predictor)
    runs = read_files(files, kernel, map_, loaded)
    scores = evaluate_predictor(loaded, runs)
    if seen := count_seen_before(loaded, runs):
        output.say(
            f"{seen:,} of these {len(runs):,} runs were learned from: "
            "their errors say nothing about new runs"
        )
    lines = loaded.explain_outside(runs.head(MAX_EXPLAINED))
    if len(lines):
        count = lines["row"].nunique()
        output.say(
            f"{count:,} of these {min(len(runs), MAX_EXPLAINED):,} runs lie outside of training:"
        )
        for column, group in lines.groupby("column", sort=False):
            first = group.iloc[0]
            example = f"{column}={first['value']}: {first['reason']}"
            output.say(f"  {example}" if len(group) == 1 else f"  {len(group):,} such as {example}")
    for name, metrics in scores.items():
        rows = metric_rows({"these runs": {str(predictor): metrics}})
        output.table(f"predicting {name}", METRIC_COLUMNS, rows)
    output.result(scores)


def predict(
    predictor: str = options.PREDICTOR,
    kernel: str = typer.Option(..., help="Name of the kernel."),
    problem: str = typer.Option(..., help="M=…,N=…,…"),
    top: int = typer.Option(10, help="How many of the best to show."),
    device: str | None = options.TRAINED_DEVICE,
    as_json: bool = options.JSON,
) -> None:
    """Rank the configurations of a problem without running anything."""
    import numpy as np

    from foretune.features import rows_of
    from foretune.models.saved.lookup import read_predictor
    from foretune.models.saved.search_predictor import require_kernel

    options.require_positive_int(top, "--top")
    loaded = read_predictor(predictor)
    require_kernel(loaded, kernel)
    hardware = options.device_for(loaded, device)
    wanted, configs, predicted = _candidates(loaded, problem, hardware)
    primary = "time_ms" if "time_ms" in predicted else next(iter(loaded.targets_))
    best = np.argsort(predicted[primary].to_numpy(), kind="stable")[:top].tolist()
    rows = rows_of(kernel, wanted, [configs[i] for i in best], hardware)
    reasons = loaded.explain_outside(rows).groupby("row")
    entries = [
        {
            "config": dict(configs[i]),
            "time_ms": row.get("time_ms"),
            "low": row[f"{primary}_low"],
            "high": row[f"{primary}_high"],
            "power_w": row.get("power_w"),
            "p_valid": row["p_valid"],
            "outside": [
                f"{line.column}={line.value}: {line.reason}"
                for line in (reasons.get_group(k).itertuples() if k in reasons.groups else ())
            ],
        }
        for k, (i, row) in enumerate((i, predicted.iloc[i]) for i in best)
    ]
    output = Output(as_json)
    watts = [] if primary == "power_w" or "power_w" not in predicted else ["power_w"]
    cells = [
        [
            f"{e[primary]:.3g}",
            f"{e['low']:.3g}–{e['high']:.3g}",
            *(f"{e[name]:.3g}" for name in watts),
            f"{e['p_valid']:.2f}",
            _format_config(e),
        ]
        for e in entries
    ]
    output.table(
        f"{kernel} {wanted}: {len(predicted):,} configurations predicted",
        (UNITS[primary], "90 % interval", *(UNITS[n] for n in watts), "valid", "configuration"),
        cells,
    )
    for reason in dict.fromkeys(r for e in entries for r in e["outside"]):
        output.say(f"outside the training range: {reason}")
    output.result({"problem": dict(wanted), "configurations": len(predicted), "configs": entries})


def _notes(done: "Training", splits: list[str]) -> "Iterator[str]":
    """Yield what is missing in a training's figures, and why."""
    from foretune.features.families_of_runs import explain_missing_roofline

    features, runs = done.predictor.features_, done.predictor.runs_
    if features.family is None and (
        reason := explain_missing_roofline(done.predictor.kernel_name_, runs)
    ):
        yield f"no roofline: {reason}"
    elif features.family is not None and not features.roofline_known_:
        yield "no roofline: the runs lack their device's peak rates (device.…) or a size"
    if done.validation.level == "none":
        return
    default_splits = ["grouped"] if done.validation.level == "quick" else ["random", "grouped"]
    for split in splits or default_splits:
        if not all(split in s for s in done.scores.values()):
            yield f"not held out: {split}: {UNUSABLE_SPLIT_REASONS[split]}"


def _candidates(
    loaded: "Predictor", problem: str, hardware: "Device"
) -> tuple[Problem, "SearchSpace | list[Configuration]", "pd.DataFrame"]:
    """Return the problem, its configurations, and predictions of all.

    The configurations are the kernel's space; where the runs came from another tool, which has no
    space here, those that were ever measured.
    """
    from foretune.features import rows_of
    from foretune.registry import get_kernel, registered

    name = loaded.kernel_name_
    if name in registered("kernels"):
        chosen = get_kernel(name)
        wanted = options.read_problem(chosen, problem)
        space = chosen.space(wanted)
        return wanted, space, loaded.predict_space(wanted, space, hardware)
    wanted = _parse_problem(loaded, problem)
    measured = loaded.measured_configurations(hardware.name)
    return wanted, measured, loaded.predict(rows_of(name, wanted, measured, hardware))


def _parse_problem(predictor: "Predictor", text: str) -> Problem:
    """Return the problem meant by ``text``; what was the same in all runs need not be said."""
    from foretune.datasets.schema import columns_of

    given, runs = Problem.parse(text), predictor.runs_
    columns = {c.removeprefix("problem."): runs[c] for c in columns_of(runs, "problem")}
    for name in given:
        if name not in columns:
            raise UnknownName("size", name, columns)
    common = {n: v.iloc[0] for n, v in columns.items() if v.notna().all() and v.nunique() == 1}
    missing = [n for n, v in columns.items() if n not in {**common, **given} and v.notna().all()]
    if missing:
        raise UsageError(f"--problem lacks {', '.join(missing)}")
    plain = {n: v.item() if hasattr(v, "item") else v for n, v in common.items()}
    return Problem({**plain, **given})


def _append_runs(predictor: "Predictor", new: "pd.DataFrame", folder: str) -> "pd.DataFrame":
    """Return the rows of ``predictor`` followed by ``new`` ones of the same kernel."""
    import pandas as pd

    others = sorted(set(map(str, new["kernel"])) - {predictor.kernel_name_})
    if others:
        raise PredictorError(
            f"{folder} knows {predictor.kernel_name_!r}, the new runs are of {', '.join(others)}: "
            "choose with --kernel, or train without --resume"
        )
    if predictor.calibration_.devices:
        raise PredictorError(
            f"{folder} was calibrated, and its runs on {', '.join(predictor.calibration_.devices)} "
            "are no training rows: resume the one it was made from, and give those runs too"
        )
    return pd.concat([predictor.runs_, new], ignore_index=True)


@contextmanager
def _mlflow_logger(
    uri: str | None, model: str, runs: "pd.DataFrame"
) -> "Iterator[Callable[[Training, Path], None]]":
    """Open an MLflow run at ``uri`` and yield what logs a training to it; nothing without one."""
    if uri is None:
        yield lambda training, folder: None
        return
    from foretune.models.predictor import require_single_kernel
    from foretune.tune.mlflow.tracking import Tracker

    kernel = require_single_kernel(runs)
    tracker = Tracker(uri)  # before the training: what cannot be reached is noticed at once
    run_id = tracker.open_run(f"{kernel}: train {model}", None, {"foretune.kernel": kernel})
    with tracker.running(run_id):
        yield lambda training, folder: tracker.log_training(run_id, training, folder)


def _format_config(entry: dict[str, dict[str, object]]) -> str:
    return " ".join(f"{k}={v}" for k, v in entry["config"].items())


def _check_known(what: str, names: list[str], known: tuple[str, ...]) -> None:
    for name in names:
        if name not in known:
            raise UnknownName(what, name, known)
