"""Plots of the best-so-far curves of replays."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from foretune.errors import UsageError
from foretune.search.replay.replay import ReplayResult
from foretune.support.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png")
MAX_COLUMNS = 4
"""Maximum number of spaces side by side."""
MAX_BANDS = 4
"""Maximum number of searchers with quartile bands."""
LEGEND_COLUMNS = 4
PANEL_WIDTH = 3.1
PANEL_HEIGHT = 2.7
LEGEND_HEIGHT = 0.35
"""Sizes in inches; the legend's is that of a row."""
COLORS = ("#0b6fb8", "#d1495b", "#2e933c", "#8f5fbf", "#e08e1b")
STYLES = [(color, dashes) for dashes in ("-", "--", "-.") for color in COLORS]
RANDOM_STYLE = ("#8a8f98", ":")
"""The baseline is grey at any position."""


def check_figure_name(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` if `draw_curves` can write it.

    Raises UsageError if the file name does not end in .svg or .png.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"cannot draw {path}: its name must end in {' or '.join(FORMATS)}")
    return path


def draw_curves(results: Sequence[ReplayResult], path: str | os.PathLike[str]) -> None:
    """Draw each searcher's median curve per space, with quartiles if there are few searchers.

    Raises UsageError if the file name does not end in .svg or .png; OutputError if the file cannot
    be written.
    """
    import matplotlib

    path = check_figure_name(path)
    spaces = list(dict.fromkeys(result.space for result in results))
    searchers = list(dict.fromkeys(result.searcher for result in results))
    styles = _styles(searchers)
    figure, panels = _make_panels(len(spaces), len(searchers))
    lines = {}
    for panel, space in zip(panels.flat, spaces, strict=False):
        for result in results:
            if result.space == space:
                with_band = len(searchers) <= MAX_BANDS
                line = _draw_curve(panel, result, styles[result.searcher], with_band)
                lines[result.searcher] = line
        panel.axhline(0.95, color="#c0c4cc", linewidth=0.8, zorder=0)
        panel.set_title(fill(space, 40), fontsize=8)
        panel.set(xscale="log", ylim=(0, 1.03), xlabel="evaluations")
        panel.xaxis.set_major_formatter("{x:.0f}")
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[:, 0]:
        panel.set_ylabel("share of the best performance", fontsize=8)
    for panel in panels.flat[len(spaces) :]:
        panel.set_visible(False)
    figure.legend(
        [lines[name] for name in searchers],
        searchers,
        loc="outside lower center",
        ncols=LEGEND_COLUMNS,
        frameon=False,
        fontsize=8,
    )

    # The same curves give the same file: no date, and no random names.
    file_format = path.suffix.lower().removeprefix(".")
    metadata = {"Date": None} if file_format == "svg" else None
    with atomic_write(path) as file, matplotlib.rc_context({"svg.hashsalt": "foretune"}):
        figure.savefig(file, format=file_format, dpi=150, metadata=metadata)


def _styles(searchers: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return color and dashes of each searcher."""
    styles = {"random": RANDOM_STYLE}
    others = [name for name in searchers if name != "random"]
    for number, name in enumerate(others):
        styles[name] = STYLES[number % len(STYLES)]
    return styles


def _make_panels(n_spaces: int, n_searchers: int) -> "tuple[Figure, Any]":
    """Return a figure with room for a legend, and its panels, shape (rows, columns)."""
    from matplotlib.figure import Figure

    n_columns = min(MAX_COLUMNS, n_spaces)
    n_rows = math.ceil(n_spaces / n_columns)
    n_legend_rows = math.ceil(n_searchers / LEGEND_COLUMNS)
    width = max(PANEL_WIDTH * n_columns, 4.5)
    height = PANEL_HEIGHT * n_rows + LEGEND_HEIGHT * n_legend_rows + 0.2
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(n_rows, n_columns, sharey=True, squeeze=False)
    return figure, panels


def _draw_curve(panel: Any, result: ReplayResult, style: tuple[str, str], with_band: bool) -> Any:
    """Draw the median of a searcher's curves, and return its line."""
    color, dashes = style
    evaluations = np.arange(1, result.budget + 1)
    low, median, high = np.quantile(result.curves, (0.25, 0.5, 0.75), axis=0)
    if with_band:
        panel.fill_between(
            evaluations, low, high, step="post", color=color, alpha=0.12, linewidth=0
        )
    (line,) = panel.plot(
        evaluations,
        median,
        linewidth=1.6,
        color=color,
        linestyle=dashes,
        drawstyle="steps-post",
    )
    return line
