"""The page of a training: predicted and measured values of held-out rows, and all scores."""

import math
from collections.abc import Iterator
from pathlib import Path

from foretune.models.validation.cross_validation import Validation
from foretune.tune.report import figures
from foretune.tune.report.chart import Chart
from foretune.tune.report.page import percent, render
from foretune.values import counted

TARGETS = {"time_ms": "time, ms", "power_w": "power, W", "energy_mj": "energy, mJ"}
"""Target -> quantity and unit, for people."""
METRICS = {
    "mape": ("Mean error", percent),
    "median_ape": ("Median error", percent),
    "p95_ape": ("95th percentile", percent),
    "spearman": ("Rank correlation", lambda r: f"{r:.2f}" if math.isfinite(r) else "–"),
    "top1_regret": ("Top-1 regret", percent),
    "coverage90": ("In 90 % interval", percent),
}
"""Metric -> (its heading, the function that formats it)."""


def validation_page(title: str, validation: Validation) -> str:
    """Return the page with predicted and measured values of held-out rows, and all scores."""
    return render(
        Path(__file__).with_name("validation.html"),
        title=title,
        heading="Foretune",
        headline=title,
        clouds=list(prediction_clouds(validation)),
        validation=validation,
        targets=TARGETS,
        metrics=METRICS,
    )


def prediction_clouds(validation: Validation) -> Iterator[tuple[str, Chart]]:
    """Yield the title and the chart of each target's held-out rows."""
    for target, rows in validation.held_out.items():
        quantity = TARGETS.get(target, target)
        name, _, _ = quantity.partition(",")
        is_inside = rows["truth"].between(rows["low"], rows["high"])
        drawn = f" ({figures.MAX_POINTS:,} drawn)" if len(rows) > figures.MAX_POINTS else ""
        title = (
            f"{name.capitalize()}: {percent(float(is_inside.mean()))} of "
            f"{counted(len(rows), 'measurement')} in the 90 % interval{drawn}"
        )
        yield title, figures.prediction_figure(rows, quantity)
