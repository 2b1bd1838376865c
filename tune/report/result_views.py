"""One tuned problem as a page, and in a notebook."""

import os
from pathlib import Path

from foretune.tune.report import figures
from foretune.tune.report.page import render, spaced, write_page
from foretune.tune.results import TuneResult


def write_tuned(path: str | os.PathLike[str], result: TuneResult) -> Path:
    """Write the report of ``result`` to ``path`` and return it, or raise OutputError."""
    winner = result.winner
    outcome = f"{winner.ratio:.2f}× the default's speed" if result.verified else result.explanation
    best = spaced(winner.config or "the default")
    page = render(
        Path(__file__).with_name("tuned.html"),
        title=f"{result.kernel} on {result.device}",
        headline=f"{result.kernel}: {outcome}",
        lead=f"Best: {best}. Problem: {spaced(result.problem.shown)}.",
        result=result,
        figures=figures,
    )
    return write_page(path, page)


def notebook_view(result: TuneResult) -> str:
    """Return the notebook view of a result: the verdict, a table and the trace's chart."""
    return render(
        Path(__file__).with_name("notebook.html"),
        title="",
        headline=result.headline,
        best=result.winner.config or {},
        default=result.baseline.config or {},
        drawn=figures.trace_figure(result),
    )
