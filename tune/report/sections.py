"""Sections of reports, and the pages of one tuned problem and of one predictor's validation."""

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.models.explanation import FEATURE_GROUPS, Importance
from foretune.models.training import Validation
from foretune.objective import Objective
from foretune.tune.report.chart import Chart
from foretune.tune.report.figures import MAX_POINTS, prediction_figure, trace_figure
from foretune.tune.report.page import counted, percent, render, write_page
from foretune.tune.results import Comparison, TuneResult

MAX_PARETO_CHARTS = 6
MAX_FEATURES_PER_GROUP = 4
"""Features named per group."""
TARGETS = {"time_ms": "time, ms", "power_w": "power, W", "energy_mj": "energy, mJ"}
METRICS = {
    "mape": ("Mean error", percent),
    "median_ape": ("Median error", percent),
    "p95_ape": ("95th percentile", percent),
    "spearman": ("Rank correlation", lambda r: f"{r:.2f}" if math.isfinite(r) else "–"),
    "top1_regret": ("Top-1 regret", percent),
    "coverage90": ("In 90 % interval", percent),
}


def is_predicted(results: Sequence[TuneResult]) -> bool:
    """Whether the searches minimized time and had predictions of it."""
    return any(
        r.objective is Objective.TIME and math.isfinite(s.predicted_ms)
        for r in results
        for s in r.trace
    )


def prediction_clouds(validation: Validation) -> Iterator[tuple[str, Chart]]:
    """Yield the title and the chart of each target's held-out rows."""
    for target, rows in validation.held_out.items():
        coverage = float(rows["truth"].between(rows["low"], rows["high"]).mean())
        what = TARGETS.get(target, target)
        sample_note = f" ({MAX_POINTS:,} drawn)" if len(rows) > MAX_POINTS else ""
        title = (
            f"{what.partition(',')[0].capitalize()}: {percent(coverage)} of "
            f"{counted(len(rows), 'measurement')} in the 90 % interval{sample_note}"
        )
        yield title, prediction_figure(rows, what)


def strongest_features(
    attribution: Importance | None,
) -> Iterator[tuple[str, float, list[dict[str, Any]]]]:
    """Yield name, typical effect and strongest features of each feature group."""
    if attribution is None:
        return
    features = attribution.features[attribution.features["mean"] > 0]
    for group in attribution.groups.to_dict("records"):
        group_features = features[features["group"] == group["group"]].head(MAX_FEATURES_PER_GROUP)
        name = FEATURE_GROUPS.get(group["group"], group["group"])
        yield name, group["factor"], group_features.to_dict("records")


def energy_by_problem(runs: pd.DataFrame) -> list[tuple[str, np.ndarray, np.ndarray]] | None:
    """Return problems with times (ms) and energies (mJ), most runs first; None without a meter."""
    runs = runs[runs["status"] == "ok"]
    if "power_w" not in runs or runs["power_w"].isna().all():
        return None
    runs = runs.assign(energy_mj=runs["power_w"] * runs["time_ms"]).dropna(subset="energy_mj")
    columns = columns_of(runs, "problem")
    names = [c.removeprefix("problem.") for c in columns]
    groups = [
        (
            ", ".join(f"{n}={v}" for n, v in zip(names, key, strict=True)),
            rows["time_ms"].to_numpy(float),
            rows["energy_mj"].to_numpy(float),
        )
        for key, rows in runs.groupby(columns, sort=False, observed=True, dropna=False)
        if len(rows) > 2
    ]
    return sorted(groups, key=lambda group: len(group[1]), reverse=True)


def failures(runs: pd.DataFrame) -> Iterator[tuple[str, int, str]]:
    """Yield each failure status with its count and the first error message."""
    failed = runs[runs["status"] != "ok"]
    for status, group in failed.groupby("status", sort=False, observed=True):
        errors = group["error"].dropna().astype(str) if "error" in group else ()
        yield str(status), len(group), next((e for e in errors if e.strip()), "–")


_WIDTH, _MARGIN = 160.0, 5.0


class RatioScale:
    """The scale of the strips with each problem's ratio to its default."""

    def __init__(self, results: Sequence[TuneResult]) -> None:
        ratios = [1.0]
        for result in results:
            shown = self.shown(result)
            ratios += [shown.ratio_low, shown.ratio, shown.ratio_high]
            if result.library is not None:
                ratios.append(result.baseline.value / result.library.value)
        finite = [r for r in ratios if math.isfinite(r) and r > 0]
        self._low, self._high = math.log(min(*finite, 0.95)), math.log(max(*finite, 1.05))

    @staticmethod
    def shown(result: TuneResult) -> Comparison:
        """Return the winner, else the best candidate, else the default."""
        return result.winner if result.verified else result.leader

    def x(self, ratio: float) -> float:
        """Return the x position of a ratio in a strip; infinite ratios are clipped."""
        fraction = (math.log(ratio) - self._low) / (self._high - self._low) if ratio > 0 else 0.0
        return round(_MARGIN + min(max(fraction, 0), 1) * (_WIDTH - 2 * _MARGIN), 1)


def write_tuned(path: str | os.PathLike[str], result: TuneResult) -> Path:
    """Write the report of ``result`` to ``path`` and return it.

    Raises:
        OutputError: the file cannot be written.
    """
    winner = result.winner
    if result.verified:
        headline = f"{result.kernel}: {winner.ratio:.2f}× the default's speed"
    else:
        headline = f"{result.kernel}: {result.explanation}"
    best = _spaced(winner.config or "the default")
    text = render(
        Path(__file__).with_name("tuned.html"),
        title=f"{result.kernel} on {result.device}",
        headline=headline,
        lead=f"Best: {best}. Problem: {_spaced(result.problem)}.",
        result=result,
        trace_figure=trace_figure,
        spaced=_spaced,
    )
    return write_page(path, text)


def notebook_view(result: TuneResult) -> str:
    """Return what a notebook shows of a result: the verdict, a table and the trace's chart."""
    template = Path(__file__).with_name("notebook.html")
    return render(
        template, title="", headline=result.headline, best=result.winner.config or {},
        default=result.baseline.config or {}, drawn=trace_figure(result),
    )  # fmt: skip


def _spaced(named: object) -> str:
    return str(named).replace(",", ", ")


def validation_page(title: str, validation: Validation) -> str:
    """Return the page with predicted and measured values of held-out rows, and all scores."""
    return render(
        Path(__file__).with_name("validation.html"), title=title, heading="Foretune",
        headline=title, clouds=list(prediction_clouds(validation)),
        validation=validation, targets=TARGETS, metrics=METRICS, nan=math.nan,
    )  # fmt: skip
