"""A gate's result as an HTML page: every change with its interval, on one scale."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from foretune.tune.gate.gate import GateResult
from foretune.tune.gate.texts import in_order
from foretune.tune.report.page import render, write_page

WIDTH = 160.0
"""Width of a strip, in its own units."""
MARGIN = 5.0
MIN_CHANGE = 0.05
"""The scale covers at least this change on both sides."""
MAX_CHANGE = 1.0
"""Ends of intervals beyond a factor of e are drawn at the edge."""


def write_gate_page(path: str | os.PathLike[str], result: GateResult) -> Path:
    """Write the page to ``path`` and return it, or raise OutputError."""
    page = render(
        Path(__file__).with_name("gate.html"),
        title="Gate",
        heading=f"{result.base} → {result.head}",
        headline=result.headline,
        result=result,
        verdicts=in_order(result),
        place=_places(result),
        width=WIDTH,
    )
    return write_page(path, page)


def _places(result: GateResult) -> Callable[[float], float]:
    """Return a function from a relative change to its place in a strip."""
    logs = [math.log1p(MIN_CHANGE)]
    for verdict in result.verdicts:
        changes = (verdict.change_low, verdict.change, verdict.change_high)
        logs += [abs(math.log1p(change)) for change in changes if math.isfinite(change)]
    largest = min(max(logs), MAX_CHANGE)

    def place(change: float) -> float:
        log = math.log1p(change)
        return round(float(np.interp(log, [-largest, largest], [MARGIN, WIDTH - MARGIN])), 1)

    return place
