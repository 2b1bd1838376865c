"""Reports of one tuned problem and of one predictor's validation."""

import math
import os
from pathlib import Path

from foretune.models.validation.evaluation import Validation
from foretune.tune.report.figures import trace_figure
from foretune.tune.report.page import render, write_page
from foretune.tune.report.sections import METRICS, TARGETS, prediction_clouds
from foretune.tune.results import TuneResult


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
