"""``foretune predict``: configurations ranked without running them; operators; networks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from foretune.cli import explaining, networks, options
from foretune.cli.csv_files import is_registered
from foretune.cli.explaining import format_cell, primary_target, rows_to_predict
from foretune.cli.operators import predict_operator
from foretune.cli.output import Output, format_config
from foretune.device import Device
from foretune.errors import UsageError, require_known
from foretune.models.guides.request import AUTO
from foretune.problem import Problem
from foretune.registry import get_kernel
from foretune.space import Configuration, SearchSpace
from foretune.values import short_number

if TYPE_CHECKING:
    import pandas as pd

    from foretune.models.predictor import Predictor

COLUMNS = {"time": "time_ms", "power": "power_w", "energy": "energy_mj"}
UNITS = {
    **{"time": "ms", "power": "W", "energy": "mJ", "edp": "mJ·ms"},
    **{"time_ms": "ms", "power_w": "W", "energy_mj": "mJ"},
}
MEASURED = tuple(f"{column}{end}" for column in COLUMNS.values() for end in ("", "_low", "_high"))
"""Columns of predictions: a value, and the ends of its interval."""


def predict(
    context: typer.Context,
    predictor: str = typer.Argument(
        help=f"{options.PREDICTOR_HELP}; auto: the one shipped for --kernel. with --on: an "
        "operator like gemm."
    ),
    kernel: str = typer.Option(
        "", help="Name of the kernel. Default: the predictor's.", show_default=False
    ),
    problem: str = typer.Option("", help="M=…,N=…,…", show_default=False),
    top: int = typer.Option(10, help="Number of best configurations to show."),
    explain: bool = typer.Option(
        False, "--explain", help="Show bottleneck and feature importance, or compare two --config."
    ),
    config: list[str] = typer.Option(
        [], help="With --explain: NAME=VALUE,…, default or best. Give two: why is B faster than A?"
    ),
    device: str | None = typer.Option(
        None, help="cpu, cuda:0 or a name. Default: the device of the training data."
    ),
    objective: str | None = typer.Option(
        None,
        autocompletion=lambda: [*COLUMNS, "edp"],
        help="What to rank by: time, power, energy or edp (energy × delay). Default: time, if "
        "learned.",
    ),
    on: str = typer.Option(
        "", "--on", help="GPU that an operator runs on, measured or not: 'RTX 4090'."
    ),
    engine: str = typer.Option(
        "vllm", help="With --on: whose kernels, vllm, sglang or trtllm.", show_default=True
    ),
    sweep: str = typer.Option("", help="With --on: a size that varies, M=1,64,4096 or M=1..8192."),
    operators: Path | None = networks.FOLDER,
    batch: str = networks.BATCHES,
    threads: str = networks.THREADS,
) -> None:
    """Rank the configurations of a problem without running anything.

    With --on, tell what a common operator costs on any GPU, without training:
    foretune predict gemm --on "RTX 4090" --problem M=4096,N=4096,K=4096,dtype=bf16

    For a network (MODEL.pt2 of torch.export), show latency, energy and peak memory.

    --explain shows what limits the runs and which features matter. With two --config, it shows why
    one is predicted faster, and what limits each. Contributions are exact (TreeSHAP), which
    requires a predictor of model xgboost.
    """
    count = options.require_positive_int(top, "--top")
    if on:
        unused = ("kernel", "top", "explain", "config", "objective", "device", "threads")
        options.reject_options(context, unused, "an operator does not take")
        predict_operator(
            Output(options.root_options(context).as_json),
            predictor,
            on=on,
            problem=problem,
            engine=engine,
            operators=operators,
            sweep=sweep,
            batch=batch,
        )
        return
    options.reject_options(context, ("engine", "sweep"), "only an operator, with --on, takes")
    if predictor.endswith(networks.SUFFIX):
        others = ("kernel", "problem", "top", "explain", "config", "objective")
        options.reject_options(context, others, "a network does not take")
        networks.predict_network(
            Output(options.root_options(context).as_json),
            predictor,
            operators,
            networks.parse_variants(batch, threads),
            options.read_local_device(device or "cpu"),
        )
    else:
        named = ("operators", "batch", "threads")
        options.reject_options(context, named, "only a network, MODEL.pt2, takes")
        _answer(context, predictor, count)


def _load(predictor: str, kernel: str, device: str | None) -> "Predictor":
    """Return the predictor. What can be wrong with the names is told before scikit-learn loads."""
    if predictor == AUTO:
        if not kernel:
            raise UsageError("give --kernel: predictor 'auto' is the one shipped for a kernel")

        from foretune.models.saved.pretrained import load_pretrained

        return load_pretrained(kernel, device)

    from foretune.models.guides.request import require_kernel
    from foretune.models.saved.lookup import read_predictor

    loaded = read_predictor(predictor)
    if kernel:
        require_kernel(loaded, kernel)
    return loaded


def _answer(context: typer.Context, predictor: str, count: int) -> None:
    """Rank configurations; with ``--explain``, compare two, or show what matters."""
    given = context.params
    problem = given["problem"]
    _check_question(problem, given["explain"], given["config"], given["objective"])

    loaded = _load(predictor, given["kernel"], given["device"])
    output = Output(options.root_options(context).as_json)
    if loaded.weakness:
        output.say(loaded.weakness)
    if given["explain"] and not problem:
        explaining.show_importance(output, loaded)
        return
    device = options.device_for(loaded, given["device"])
    if given["explain"]:
        explaining.show_comparison(output, loaded, problem, given["config"], device)
    else:
        objective = given["objective"] or primary_target(loaded).partition("_")[0]
        _show_ranking(output, loaded, problem, device, count=count, objective=objective)


def _check_question(problem: str, explain: bool, config: list[str], objective: str | None) -> None:
    if config and not explain:
        raise UsageError("--config needs --explain: add it")
    if objective and explain:
        raise UsageError("--objective applies to rankings: leave out --objective or --explain")
    if not explain and not problem:
        raise UsageError("give --problem M=…,N=…, the sizes to predict for, or --explain")
    if explain and (problem or config) and (not problem or len(config) != 2):
        raise UsageError("to compare, give --problem and two --config; otherwise neither")


def _show_ranking(
    output: Output,
    predictor: "Predictor",
    problem: str,
    device: Device,
    *,
    count: int,
    objective: str,
) -> None:
    """Print the configurations with the least predicted objective."""
    from foretune.features.candidates import rows_of
    from foretune.models.objectives import predicted_objective

    candidates = _candidates(predictor, problem, device)
    predicted = candidates.predicted
    values = predicted_objective(predicted, objective)
    best = np.argsort(values["value"].to_numpy(), kind="stable")[:count].tolist()
    configs = [candidates.configs[number] for number in best]
    rows = rows_of(predictor.kernel_name_, candidates.problem, configs, device)
    reasons = _reasons_outside(predictor, rows)

    entries = []
    for position, number in enumerate(best):
        entry: dict[str, Any] = {"config": dict(configs[position])}
        for column in MEASURED:
            entry[column] = predicted[column].iloc[number] if column in predicted else None
        entry |= values.iloc[number]
        entry["p_valid"] = predicted["p_valid"].iloc[number]
        entry["outside"] = reasons[position]
        entries.append(entry)
    subject = f"{predictor.kernel_name_} {candidates.problem}"
    title = f"{subject}: {len(predicted):,} configurations predicted"
    other_columns = [
        column for name, column in COLUMNS.items() if column in predicted and name != objective
    ]
    _print_ranking(output, title, entries, objective=objective, other_columns=other_columns)
    for reason in dict.fromkeys(reason for entry in entries for reason in entry["outside"]):
        output.say(f"outside the training range: {reason}")
    answer = {
        "problem": dict(candidates.problem),
        "configurations": len(predicted),
        "objective": objective,
    }
    if predictor.weakness:
        answer["weakness"] = predictor.weakness
    output.result({**answer, "configs": entries})


def _print_ranking(
    output: Output,
    title: str,
    entries: Sequence[Mapping[str, Any]],
    *,
    objective: str,
    other_columns: Sequence[str],
) -> None:
    """Print a row per configuration: the objective, other predictions, and the knobs."""
    rows = []
    for entry in entries:
        interval = f"{short_number(entry['low'])}–{short_number(entry['high'])}"
        others = [short_number(entry[column]) for column in other_columns]
        config = format_config(entry["config"])
        p_valid = f"{entry['p_valid']:.2f}"
        rows.append([short_number(entry["value"]), interval, *others, p_valid, config])
    units = [UNITS[column] for column in other_columns]
    headings = (UNITS[objective], "90 % interval", *units, "valid", "configuration")
    output.table(title, headings, rows)


def _reasons_outside(predictor: "Predictor", rows: "pd.DataFrame") -> list[list[str]]:
    """Return, per row, why it is outside the training range; empty if it is inside."""
    reasons: list[list[str]] = [[] for _ in range(len(rows))]
    for line in predictor.explain_outside(rows).itertuples():
        reasons[line.row].append(f"{line.column}={format_cell(line.value)}: {line.reason}")
    return reasons


@dataclass(frozen=True)
class _Candidates:
    """A problem's configurations, and a row of predictions for each."""

    problem: Problem
    configs: "SearchSpace | list[Configuration]"
    predicted: "pd.DataFrame"


def _candidates(predictor: "Predictor", problem: str, device: Device) -> _Candidates:
    """Predict the kernel's whole space.

    If the kernel is not registered, or the runs have other parameters, all configurations in the
    training runs.
    """
    name = predictor.kernel_name_
    if is_registered(name, predictor.runs_.columns):
        kernel = get_kernel(name)
        known_problem = kernel.problem(Problem.parse(problem))  # it need not fit in memory here
        space = kernel.space(known_problem)
        predicted = predictor.predict_space(known_problem, space, device)
        return _Candidates(known_problem, space, predicted)

    parsed_problem = _parse_problem(predictor, problem)
    configs = predictor.measured_configurations(device.name)
    predicted = predictor.predict(rows_to_predict(predictor, parsed_problem, configs, device))
    return _Candidates(parsed_problem, configs, predicted)


def _parse_problem(predictor: "Predictor", text: str) -> Problem:
    """Parse a problem; parameters that were constant in training may be omitted."""
    from foretune.datasets.schema import columns_of

    given = Problem.parse(text)
    runs = predictor.runs_
    columns = {c.removeprefix("problem."): runs[c] for c in columns_of(runs, "problem")}
    require_known("size", given, columns)

    # Sizes that only some runs have are optional.
    required = {name: values for name, values in columns.items() if values.notna().all()}
    constants = {name: values.iloc[0] for name, values in required.items() if values.nunique() == 1}
    sizes = {**constants, **given}
    missing = [name for name in required if name not in sizes]
    if missing:
        examples = (f"{name} (such as {columns[name].iloc[0]})" for name in missing)
        raise UsageError(f"--problem lacks {', '.join(examples)}")
    return Problem(sizes)
