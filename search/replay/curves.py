"""Plots of the best-so-far curves of replays."""

import os
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import numpy as np

from foretune.errors import UsageError
from foretune.search.replay.replay import ReplayResult
from foretune.support.files import atomic_write

FORMATS = (".svg", ".png")
MAX_COLUMNS = 4  # maximum number of spaces side by side
MAX_BANDS = 4  # maximum number of searchers with quartile bands
COLORS = ("#0b6fb8", "#d1495b", "#2e933c", "#8f5fbf", "#e08e1b")
STYLES = [(color, dashes) for dashes in ("-", "--", "-.") for color in COLORS]
RANDOM_STYLE = ("#8a8f98", ":")  # the baseline is grey at any position


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
    from matplotlib.figure import Figure

    path = check_figure_name(path)
    spaces = list(dict.fromkeys(r.space for r in results))
    searchers = list(dict.fromkeys(r.searcher for r in results))
    others = [name for name in searchers if name != "random"]
    styles = {name: STYLES[i % len(STYLES)] for i, name in enumerate(others)}
    styles["random"] = RANDOM_STYLE
    columns = min(MAX_COLUMNS, len(spaces))
    rows = -(-len(spaces) // columns)
    size = (max(3.1 * columns, 4.5), 2.7 * rows + 0.35 * -(-len(searchers) // 4) + 0.2)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    lines = {}
    for panel, space in zip(panels.flat, spaces, strict=False):
        for result in (r for r in results if r.space == space):
            color, dashes = styles[result.searcher]
            steps = np.arange(1, result.budget + 1)
            low, middle, high = np.quantile(result.curves, (0.25, 0.5, 0.75), axis=0)
            if len(searchers) <= MAX_BANDS:
                band = {"color": color, "alpha": 0.12, "linewidth": 0}
                panel.fill_between(steps, low, high, step="post", **band)
            style = {"color": color, "linestyle": dashes, "drawstyle": "steps-post"}
            (line,) = panel.plot(steps, middle, linewidth=1.6, **style)
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
    handles = [lines[name] for name in searchers]
    figure.legend(
        handles, searchers, loc="outside lower center", ncols=4, frameon=False, fontsize=8
    )
    kind = path.suffix.lower()[1:]
    metadata = {"Date": None} if kind == "svg" else None  # the same curves, the same file
    with atomic_write(path) as file, matplotlib.rc_context({"svg.hashsalt": "foretune"}):
        figure.savefig(file, format=kind, dpi=150, metadata=metadata)
