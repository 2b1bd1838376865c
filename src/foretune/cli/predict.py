"""``foretune predict``: configurations ranked without running them, and why (``--explain``)."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from foretune.cli import networks, options
from foretune.cli.csv_files import is_registered
from foretune.cli.operators import predict_operator
from foretune.cli.output import Output, format_config
from foretune.device import Device
from foretune.errors import UsageError, require_known
from foretune.kernel import Kernel
from foretune.models.guides.request import AUTO
from foretune.problem import Problem
from foretune.registry import get_kernel
from foretune.space import Configuration, SearchSpace
from foretune.values import short_number

if TYPE_CHECKING:
    import pandas as pd

    from foretune.models.predictor import Predictor
    from foretune.models.targets import Target

COLUMNS = {"time": "time_ms", "power": "power_w", "energy": "energy_mj"}
UNITS = {
    **{"time": "ms", "power": "W", "energy": "mJ", "edp": "mJ·ms"},
    **{"time_ms": "ms", "power_w": "W", "energy_mj": "mJ"},
}
MEASURED = tuple(f"{name}{end}" for name in COLUMNS.values() for end in ("", "_low", "_high"))
MAX_FEATURES_SHOWN = 15


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

    With --on, tell what an operator that everybody runs costs on any GPU, without training:
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
    names = ("kernel", "problem", "explain", "config", "device", "objective")
    kernel, problem, explain, config, device, objective = (context.params[n] for n in names)
    _check_question(problem, explain, config, objective)

    loaded = _load(predictor, kernel, device)
    output = Output(options.root_options(context).as_json)
    if not explain:
        by = objective or _primary_target(loaded).partition("_")[0]
        _show_ranking(output, loaded, problem, options.device_for(loaded, device), count, by)
    elif problem:
        _compare(output, loaded, problem, config, device)
    else:
        _show_importance(output, loaded)


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
    output: Output, loaded: "Predictor", problem: str, hardware: Device, top: int, by: str
) -> None:
    from foretune.features.candidates import rows_of
    from foretune.models.objectives import predicted_objective

    kernel = loaded.kernel_name_
    wanted, configs, predicted = _candidates(loaded, problem, hardware)
    ranked = predicted_objective(predicted, by)
    best = np.argsort(ranked["value"].to_numpy(), kind="stable")[:top].tolist()
    rows = rows_of(kernel, wanted, [configs[i] for i in best], hardware)
    reasons = loaded.explain_outside(rows).groupby("row")
    entries = [
        {
            "config": dict(configs[i]),
            **{name: predicted[name].iloc[i] if name in predicted else None for name in MEASURED},
            **ranked.iloc[i],
            "p_valid": predicted["p_valid"].iloc[i],
            "outside": [
                f"{line.column}={_format_value(line.value)}: {line.reason}"
                for line in (reasons.get_group(k).itertuples() if k in reasons.groups else ())
            ],
        }
        for k, i in enumerate(best)
    ]
    others = [name for key, name in COLUMNS.items() if name in predicted and key != by]
    cells = [
        [
            *_texts(e["value"], e["low"], e["high"]),
            *(short_number(e[name]) for name in others),
            f"{e['p_valid']:.2f}",
            format_config(e["config"]),
        ]
        for e in entries
    ]
    output.table(
        f"{kernel} {wanted}: {len(predicted):,} configurations predicted",
        (UNITS[by], "90 % interval", *(UNITS[n] for n in others), "valid", "configuration"),
        cells,
    )
    for reason in dict.fromkeys(r for e in entries for r in e["outside"]):
        output.say(f"outside the training range: {reason}")
    asked = {"problem": dict(wanted), "configurations": len(predicted), "objective": by}
    output.result({**asked, "configs": entries})


def _texts(value: float, low: float, high: float) -> tuple[str, str]:
    return short_number(value), f"{short_number(low)}–{short_number(high)}"


def _primary_target(predictor: "Predictor") -> "Target":
    return "time_ms" if "time_ms" in predictor.targets_ else next(iter(predictor.targets_))


def _candidates(
    loaded: "Predictor", problem: str, hardware: Device
) -> tuple[Problem, "SearchSpace | list[Configuration]", "pd.DataFrame"]:
    """Return the problem, its configurations, and their predictions.

    The configurations are the kernel's space; if the kernel is not registered, or the runs have
    other parameters, all configurations in the training runs.
    """
    name = loaded.kernel_name_
    if is_registered(name, loaded.runs_.columns):
        chosen = get_kernel(name)
        wanted = chosen.problem(Problem.parse(problem))  # it need not fit this machine's memory
        space = chosen.space(wanted)
        return wanted, space, loaded.predict_space(wanted, space, hardware)
    wanted = _parse_problem(loaded, problem)
    measured = loaded.measured_configurations(hardware.name)
    return wanted, measured, loaded.predict(_rows(loaded, wanted, measured, hardware))


def _rows(
    predictor: "Predictor", problem: Problem, configs: list[Configuration], device: Device
) -> "pd.DataFrame":
    """Return rows to predict; training's settings that none of them has are gaps."""
    from foretune.features.candidates import rows_of, settings_of

    rows = rows_of(predictor.kernel_name_, problem, configs, device)
    return rows.reindex(columns=rows.columns.union(settings_of(predictor.runs_.head(0)).columns))


def _parse_problem(predictor: "Predictor", text: str) -> Problem:
    """Parse a problem; parameters that were constant in training may be omitted."""
    from foretune.datasets.schema import columns_of

    given, runs = Problem.parse(text), predictor.runs_
    columns = {c.removeprefix("problem."): runs[c] for c in columns_of(runs, "problem")}
    require_known("size", given, columns)
    complete = {n: v for n, v in columns.items() if v.notna().all()}
    values = {**{n: v.iloc[0] for n, v in complete.items() if v.nunique() == 1}, **given}
    if missing := [n for n in complete if n not in values]:
        examples = (f"{name} (such as {columns[name].iloc[0]})" for name in missing)
        raise UsageError(f"--problem lacks {', '.join(examples)}")
    return Problem(values)


def _show_importance(output: Output, predictor: "Predictor") -> None:
    from foretune.models.bottlenecks import bottlenecks
    from foretune.models.explanation import FEATURE_GROUPS, importance
    from foretune.models.targets import measured_rows

    target = _primary_target(predictor)
    found = importance(predictor, target=target)
    title = f"what determines predicted {target} ({found.rows:,} rows)"
    features, groups = (table.to_dict("records") for table in (found.features, found.groups))
    rows = [
        [str(f["feature"]), str(f["group"]), f"{f['factor']:.3f}×"]
        for f in features[:MAX_FEATURES_SHOWN]
    ]
    output.table(title, ("feature", "group", "typical effect"), rows)
    rows = [[g["group"], FEATURE_GROUPS[g["group"]], f"{g['factor']:.3f}×"] for g in groups]
    output.say("")
    output.table("by group", ("group", "content", "typical effect"), rows)
    limits = bottlenecks(predictor, measured_rows("time_ms", predictor.runs_))["bottleneck"]
    shares = limits[limits != ""].value_counts(normalize=True).to_dict()
    if shares:
        output.say("")
        rows = [[kind, f"{share:.0%}"] for kind, share in shares.items()]
        output.table("what limits the training runs", ("bottleneck", "runs"), rows)
    result = {"target": target, "rows": found.rows, "features": features, "groups": groups}
    output.result({**result, "bottlenecks": shares})


def _compare(
    output: Output, predictor: "Predictor", wanted: str, configs: list[str], named: str | None
) -> None:
    from foretune.models.bottlenecks import bottlenecks
    from foretune.models.explanation import compare

    # a kernel that cannot be run is known from its runs alone
    target, family = _primary_target(predictor), predictor.features_.family
    kernel = family if isinstance(family, Kernel) else None
    problem = Problem.parse(wanted)
    problem = kernel.problem(problem) if kernel else problem
    device = options.device_for(predictor, named)
    a, b = (_read_config(predictor, kernel, problem, device, text) for text in configs)
    rows = _rows(predictor, problem, [a, b], device)
    comparison = compare(predictor, rows, 0, 1, target)
    output.say(f"A: {_format_difference(a, b)}\nB: {_format_difference(b, a)}")
    cells = [
        [str(f["feature"]), _format_value(f["a"]), _format_value(f["b"]), f"{f['factor']:.3f}×"]
        for f in comparison.factors.head(MAX_FEATURES_SHOWN).to_dict("records")
    ]
    title = f"{problem}: {target} of B over A is predicted {comparison.predicted:.3f}×"
    output.table(title, ("feature", "A", "B", "factor"), cells)
    if (hidden := len(comparison.factors) - MAX_FEATURES_SHOWN) > 0:
        rest = float(comparison.factors["factor"].iloc[MAX_FEATURES_SHOWN:].prod())
        output.say(f"{hidden} more: {rest:.3f}× together")
    output.say(f"product, which the trees predict: {comparison.tree:.3f}×")
    for line in predictor.explain_outside(rows).to_dict("records"):
        where = f"{line['column']}={_format_value(line['value'])}"
        output.say(f"{'AB'[line['row']]}: {where}: {line['reason']}")
    limits = bottlenecks(predictor, rows)["bottleneck"].tolist()
    for letter, name in zip("AB", limits, strict=True):
        if name:
            output.say(f"{letter} is limited by {name}")
    output.result(
        {
            "bottleneck": dict(zip("ab", limits, strict=True)),
            "target": target,
            "problem": dict(problem),
            "a": dict(a),
            "b": dict(b),
            "device": device.name,
            "predicted_ratio": comparison.predicted,
            "tree_ratio": comparison.tree,
            "factors": comparison.factors.to_dict("records"),
        }
    )


def _read_config(
    predictor: "Predictor", kernel: Kernel | None, problem: Problem, device: Device, text: str
) -> Configuration:
    """Parse a configuration; missing parameters come from the default."""
    from foretune.datasets.schema import columns_of

    if text in ("default", "best"):
        if kernel is None:
            raise UsageError(
                f"--config {text} needs a kernel that can be run; {predictor.kernel_name_} is "
                "known from its runs alone: write NAME=VALUE,…"
            )
        if text == "default":
            return kernel.default(problem)
        space = kernel.space(problem)
        predicted = predictor.predict_space(problem, space, device)
        return space[int(predicted[_primary_target(predictor)].argmin())]
    given = Configuration.parse(text)
    runs = predictor.runs_
    known = [c.removeprefix("config.") for c in columns_of(runs, "config")]
    require_known("parameter", given, known)
    start = dict(kernel.default(problem)) if kernel else {}
    config = Configuration({**start, **given})
    if missing := [n for n in known if n not in config and runs[f"config.{n}"].notna().all()]:
        raise UsageError(f"--config {text!r} lacks {', '.join(missing)}")
    return config


def _format_difference(config: Configuration, other: Configuration) -> str:
    own = {k: v for k, v in config.items() if k not in other or other[k] != v}
    return format_config(own) or "the same"


def _format_value(value: object) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.6g}"
    return "" if value is None else str(value)
