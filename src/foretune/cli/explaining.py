"""``foretune predict --explain``: which features matter, and why one configuration is faster."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from foretune.cli.output import Output, format_config
from foretune.device import Device
from foretune.errors import UsageError, require_known
from foretune.kernel import Kernel
from foretune.problem import Problem
from foretune.space import Configuration

if TYPE_CHECKING:
    import pandas as pd

    from foretune.models.predictor import Predictor
    from foretune.models.target_names import Target

MAX_FEATURES_SHOWN = 15
NAMED_CONFIGS = ("default", "best")
"""Configurations that a kernel gives."""


def show_importance(output: Output, predictor: "Predictor") -> None:
    """Print the typical effect of features and their groups, and what limits the training runs."""
    from foretune.models.bottlenecks import bottlenecks
    from foretune.models.explanation import FEATURE_GROUPS, importance
    from foretune.models.targets import measured_rows

    target = primary_target(predictor)
    effects = importance(predictor, target=target)
    features = effects.features.to_dict("records")
    groups = effects.groups.to_dict("records")
    output.table(
        f"what determines predicted {target} ({effects.rows:,} rows)",
        ("feature", "group", "typical effect"),
        [
            [str(feature["feature"]), str(feature["group"]), f"{feature['factor']:.3f}×"]
            for feature in features[:MAX_FEATURES_SHOWN]
        ],
    )
    output.say("")
    output.table(
        "by group",
        ("group", "content", "typical effect"),
        [
            [group["group"], FEATURE_GROUPS[group["group"]], f"{group['factor']:.3f}×"]
            for group in groups
        ],
    )

    limits = bottlenecks(predictor, measured_rows("time_ms", predictor.runs_))["bottleneck"]
    share_of_limit = limits[limits != ""].value_counts(normalize=True).to_dict()
    if share_of_limit:
        output.say("")
        rows = [[name, f"{share:.0%}"] for name, share in share_of_limit.items()]
        output.table("what limits the training runs", ("bottleneck", "runs"), rows)
    output.result(
        {
            "target": target,
            "rows": effects.rows,
            "features": features,
            "groups": groups,
            "bottlenecks": share_of_limit,
        }
    )


def show_comparison(
    output: Output,
    predictor: "Predictor",
    problem_text: str,
    config_texts: Sequence[str],
    device: Device,
) -> None:
    """Print why the second of two configurations, B, is predicted faster than the first, A."""
    from foretune.models.bottlenecks import bottlenecks
    from foretune.models.explanation import compare

    # A kernel that cannot be run is known from its runs alone.
    family = predictor.features_.family
    kernel = family if isinstance(family, Kernel) else None
    problem = Problem.parse(problem_text)
    if kernel is not None:
        problem = kernel.problem(problem)
    a, b = (_read_config(predictor, kernel, problem, device, text) for text in config_texts)

    target = primary_target(predictor)
    rows = rows_to_predict(predictor, problem, [a, b], device)
    comparison = compare(predictor, rows, 0, 1, target)
    output.say(f"A: {_format_difference(a, b)}\nB: {_format_difference(b, a)}")
    cells = []
    for factor in comparison.factors.head(MAX_FEATURES_SHOWN).to_dict("records"):
        values = [format_cell(factor["a"]), format_cell(factor["b"])]
        cells.append([str(factor["feature"]), *values, f"{factor['factor']:.3f}×"])
    title = f"{problem}: {target} of B over A is predicted {comparison.predicted:.3f}×"
    output.table(title, ("feature", "A", "B", "factor"), cells)
    n_hidden = len(comparison.factors) - MAX_FEATURES_SHOWN
    if n_hidden > 0:
        together = float(comparison.factors["factor"].iloc[MAX_FEATURES_SHOWN:].prod())
        output.say(f"{n_hidden} more: {together:.3f}× together")
    output.say(f"product, which the trees predict: {comparison.tree:.3f}×")

    for line in predictor.explain_outside(rows).itertuples():
        value = f"{line.column}={format_cell(line.value)}"
        output.say(f"{'AB'[line.row]}: {value}: {line.reason}")
    limit_of_a, limit_of_b = bottlenecks(predictor, rows)["bottleneck"].tolist()
    for letter, limit in (("A", limit_of_a), ("B", limit_of_b)):
        if limit:
            output.say(f"{letter} is limited by {limit}")
    output.result(
        {
            "bottleneck": {"a": limit_of_a, "b": limit_of_b},
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


def primary_target(predictor: "Predictor") -> "Target":
    """Return the time, if it was learned; else the first target."""
    return "time_ms" if "time_ms" in predictor.targets_ else next(iter(predictor.targets_))


def rows_to_predict(
    predictor: "Predictor", problem: Problem, configs: list[Configuration], device: Device
) -> "pd.DataFrame":
    """Return rows to predict; training's settings that none of them has are gaps."""
    from foretune.features.candidates import rows_of, settings_of

    rows = rows_of(predictor.kernel_name_, problem, configs, device)
    settings_of_training = settings_of(predictor.runs_.head(0)).columns
    return rows.reindex(columns=rows.columns.union(settings_of_training))


def format_cell(value: object) -> str:
    """Return a value of a run; a dash for NaN, nothing for None."""
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.6g}"
    return "" if value is None else str(value)


def _read_config(
    predictor: "Predictor", kernel: Kernel | None, problem: Problem, device: Device, text: str
) -> Configuration:
    """Parse a configuration; missing parameters come from the default."""
    from foretune.datasets.schema import columns_of

    if text in NAMED_CONFIGS:
        if kernel is None:
            raise UsageError(
                f"--config {text} needs a kernel that can be run; {predictor.kernel_name_} is "
                "known from its runs alone: write NAME=VALUE,…"
            )
        if text == "default":
            return kernel.default(problem)
        space = kernel.space(problem)
        predicted = predictor.predict_space(problem, space, device)
        return space[int(predicted[primary_target(predictor)].argmin())]

    given = Configuration.parse(text)
    runs = predictor.runs_
    known = [column.removeprefix("config.") for column in columns_of(runs, "config")]
    require_known("parameter", given, known)
    default = dict(kernel.default(problem)) if kernel else {}
    config = Configuration({**default, **given})

    # Parameters that some runs lack are optional.
    required = [name for name in known if runs[f"config.{name}"].notna().all()]
    missing = [name for name in required if name not in config]
    if missing:
        raise UsageError(f"--config {text!r} lacks {', '.join(missing)}")
    return config


def _format_difference(config: Configuration, other: Configuration) -> str:
    """Return the values in which ``config`` differs from the other one."""
    changed = {
        name: value for name, value in config.items() if name not in other or other[name] != value
    }
    return format_config(changed) or "the same"
