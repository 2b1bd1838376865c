"""``foretune explain``: what a predictor goes by, and why it prefers one configuration."""

from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.errors import UnknownName, UsageError
from foretune.problem import Problem
from foretune.space import Configuration

if TYPE_CHECKING:
    from foretune.device import Device
    from foretune.kernel import Kernel
    from foretune.models import Predictor
    from foretune.models.explanation import Comparison, Importance
    from foretune.models.targets import Target

MAX_LINES = 15
"""Shown to people; the JSON has all."""


def explain(
    predictor: str = options.PREDICTOR,
    kernel: str | None = typer.Option(None, help="Kernel; it must be the predictor's."),
    problem: str | None = typer.Option(
        None, help="Problem M=…,N=…,… on which to compare two configurations."
    ),
    config: list[str] = typer.Option(
        [], help="NAME=VALUE,…, default or best. Give two: why is the second faster?"
    ),
    device: str | None = options.TRAINED_DEVICE,
    target: str = typer.Option("time_ms", help="time_ms or power_w."),
    as_json: bool = options.JSON,
) -> None:
    """Show what predictions rest on, or why one configuration is predicted faster.

    Contributions are exact (TreeSHAP), so this needs a predictor of model xgboost.
    """
    from foretune.models.saved.lookup import read_predictor
    from foretune.models.saved.search_predictor import require_kernel
    from foretune.models.targets import TARGETS

    if target not in TARGETS:
        raise UnknownName("target", target, TARGETS)
    if (problem is not None or config) and (problem is None or len(config) != 2):
        raise UsageError("to compare, give --problem and --config twice; without them, neither")
    loaded, output = read_predictor(predictor), Output(as_json)
    if kernel is not None:
        require_kernel(loaded, kernel)
    if problem is None:
        from foretune.models.explanation import importance

        _show_importance(output, importance(loaded, target=target), target)
    else:
        _compare(output, loaded, problem, config, device, target)


def _show_importance(output: Output, found: "Importance", target: str) -> None:
    from foretune.models.explanation import FEATURE_GROUPS

    title = f"what predicted {target} rests on ({found.rows:,} rows)"
    rows = [
        [str(f["feature"]), str(f["group"]), f"{f['factor']:.3f}×"]
        for f in found.features.head(MAX_LINES).to_dict("records")
    ]
    output.table(title, ("feature", "group", "typical effect"), rows)
    groups: list[dict[str, Any]] = found.groups.to_dict("records")
    rows = [[g["group"], FEATURE_GROUPS[g["group"]], f"{g['factor']:.3f}×"] for g in groups]
    output.say("")
    output.table("by group", ("group", "what it is", "typical effect"), rows)
    features = found.features.to_dict("records")
    output.result({"target": target, "rows": found.rows, "features": features, "groups": groups})


def _compare(
    output: Output,
    predictor: "Predictor",
    problem_text: str,
    config_texts: list[str],
    device_name: str | None,
    target: "Target",
) -> None:
    from foretune.features import rows_of
    from foretune.models.explanation import compare

    kernel = _runnable_kernel(predictor)
    problem = Problem.parse(problem_text)
    problem = kernel.problem(problem) if kernel else problem
    device = options.device_for(predictor, device_name)
    a, b = (_read_config(predictor, kernel, problem, device, text) for text in config_texts)
    rows = rows_of(predictor.kernel_name_, problem, [a, b], device)
    comparison = compare(predictor, rows, 0, 1, target)
    _show_comparison(output, comparison, problem, a, b)
    for line in predictor.explain_outside(rows).to_dict("records"):
        output.say(f"{'AB'[line['row']]}: {line['column']}={line['value']} {line['reason']}")
    output.result(
        {
            "target": target, "problem": dict(problem), "a": dict(a), "b": dict(b),
            "device": device.name, "predicted_ratio": comparison.predicted, "tree_ratio": comparison.tree,
            "factors": comparison.factors.to_dict("records"),
        }
    )  # fmt: skip


def _show_comparison(
    output: Output, comparison: "Comparison", problem: Problem, a: Configuration, b: Configuration
) -> None:
    output.say(f"A: {_format_difference(a, b)}\nB: {_format_difference(b, a)}")
    title = f"{problem}: {comparison.target} of B over A is predicted {comparison.predicted:.3f}×"
    rows = [
        [str(f["feature"]), _format_value(f["a"]), _format_value(f["b"]), f"{f['factor']:.3f}×"]
        for f in comparison.factors.head(MAX_LINES).to_dict("records")
    ]
    output.table(title, ("feature", "A", "B", "factor"), rows)
    if (hidden := len(comparison.factors) - MAX_LINES) > 0:
        rest = float(comparison.factors["factor"].iloc[MAX_LINES:].prod())
        output.say(f"{hidden} more: {rest:.3f}× together")
    output.say(f"product, which is what the trees say: {comparison.tree:.3f}×")


def _runnable_kernel(predictor: "Predictor") -> "Kernel | None":
    """Return the predictor's kernel if it can be run, so has defaults and a space; else None."""
    from foretune.kernel import Kernel

    family = predictor.features_.family
    return family if isinstance(family, Kernel) else None


def _read_config(
    predictor: "Predictor",
    kernel: "Kernel | None",
    problem: Problem,
    device: "Device",
    text: str,
) -> Configuration:
    """Return the configuration meant by ``text``; what it leaves out is as in the default."""
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
        return space[int(predictor.predict_space(problem, space, device)["time_ms"].argmin())]
    given = Configuration.parse(text)
    known = [c.removeprefix("config.") for c in columns_of(predictor.runs_, "config")]
    for name in given:
        if name not in known:
            raise UnknownName("parameter", name, known)
    start = dict(kernel.default(problem)) if kernel else {}
    config = Configuration({**start, **given})
    if missing := [n for n in known if n not in config]:
        raise UsageError(f"--config {text!r} lacks {', '.join(missing)}")
    return config


def _format_difference(config: Configuration, other: Configuration) -> str:
    parts = [f"{k}={v}" for k, v in config.items() if k not in other or other[k] != v]
    return " ".join(parts) or "the same"


def _format_value(value: object) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.6g}"
    return "" if value is None else str(value)
