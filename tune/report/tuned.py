"""The report of one tuned problem: the verdict, and every measurement."""

import os
from pathlib import Path

from foretune.tune.report.figures import trace_figure
from foretune.tune.report.page import render, write_page
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
        headline = f"{result.kernel}: {result.verdict}"
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


def _spaced(named: object) -> str:
    return str(named).replace(",", ", ")
