"""Plots of results with Matplotlib (extra ``plot``); each returns the axes that it drew on.

Every function takes a result, or the table that its ``to_frame`` returns, and ``ax``; without one,
it makes a figure. Where Optuna has the same plot, the name is Optuna's.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from foretune.errors import UsageError, require_known
from foretune.support.lazy import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURED = "#0072b2"
PREDICTED = "#e69f00"
FAILED = "#d55e00"
OTHER = "0.45"
"""Colors; these differ for color-blind readers, too."""
LARGE_RANGE = 10
"""Values that span more than this factor get a logarithmic axis."""


def history(result: Any, ax: "Axes | None" = None) -> "Axes":
    """Draw every measurement of a search in order, the best so far, and the default.

    Of a table that `foretune gate --record` wrote, draw each benchmark's times over the revisions,
    relative to its first one.
    """
    ax = _axes(ax)
    table = _table(result)
    if "config.revision" in table:
        return _trend(table, ax)
    number = np.arange(1, len(table) + 1)
    failed = ~np.isfinite(table["objective"])
    ax.plot(number, table["objective"], "o", color=MEASURED, label="measured")
    ax.step(number, table["best"], where="post", color=MEASURED, label="best so far")
    default = getattr(_search_of(result), "searched_default", None)
    if default is not None:
        ax.axhline(default, ls="--", lw=1, color=OTHER, label="default")
    if failed.any():
        # Failures have no value: draw them as high as the first success.
        height = float(table["best"].max())
        ax.plot(number[failed], np.full(failed.sum(), height), "x", color=FAILED, label="failed")
    _scale(ax, table["objective"])
    return _labeled(ax, "measurement", _unit(result))


def _trend(runs: pd.DataFrame, ax: "Axes") -> "Axes":
    """Draw the newest time of each benchmark and revision, in the order in which they came."""
    revisions = list(dict.fromkeys(runs["config.revision"].astype(str)))
    measured = runs[runs["time_ms"].notna()]
    for benchmark, rows in measured.groupby("problem.benchmark", sort=False):
        newest = rows.drop_duplicates("config.revision", keep="last")

        # A revision that was measured again is the last one in the table: back to its place.
        position_of_row = [revisions.index(str(revision)) for revision in newest["config.revision"]]
        positions = np.array(position_of_row)
        order = np.argsort(positions)
        times = newest["time_ms"].to_numpy()[order]
        ax.plot(positions[order], times / times[0], "o-", label=str(benchmark))
    ax.set_xticks(range(len(revisions)), revisions)
    ax.axhline(1.0, ls="--", lw=1, color=OTHER)
    return _labeled(ax, "revision", "time, relative to the first")


def predicted_measured(result: Any, ax: "Axes | None" = None) -> "Axes":
    """Draw predicted over measured times, with 90 % intervals; the title has their coverage.

    ``result`` is a search with a predictor, a training, or a table with the columns ``truth``,
    ``prediction``, ``low`` and ``high``.
    """
    ax = _axes(ax)
    table = _held_out(result)
    if table.empty:
        raise UsageError("nothing was predicted: tune with a predictor, or validate a training")
    below = table["prediction"] - table["low"]
    above = table["high"] - table["prediction"]
    ax.errorbar(
        table["truth"],
        table["prediction"],
        [below.clip(lower=0), above.clip(lower=0)],
        fmt="o",
        ms=4,
        lw=1,
        color=PREDICTED,
        mfc=MEASURED,
        mec=MEASURED,
    )

    # On the diagonal, predictions are right.
    times = table[["truth", "prediction"]]
    ends = [times.min().min(), times.max().max()]
    ax.plot(ends, ends, lw=1, color=OTHER)
    ax.set(xscale="log", yscale="log")

    if table["low"].notna().any():
        inside = table["truth"].between(table["low"], table["high"]).mean()
        ax.set_title(f"{inside:.0%} of {len(table)} in the 90 % interval")
    return _labeled(ax, "measured, ms", "predicted, ms")


def importance(result: Any, ax: "Axes | None" = None) -> "Axes":
    """Draw how much each knob matters: its slowest value over its fastest.

    ``result`` is a search, for the medians of its measurements, or the table of
    `foretune.models.explanation.parameter_importance`, for predictions.
    """
    ax = _axes(ax)
    is_importance = isinstance(result, pd.DataFrame) and "factor" in result
    table = result if is_importance else _measured_importance(result)
    table = table.sort_values("factor")
    ax.barh(table["parameter"].astype(str), table["factor"] - 1, left=1, color=MEASURED)
    return _labeled(ax, "slowest over fastest value", "")


def _measured_importance(result: Any) -> pd.DataFrame:
    """Return each knob's slowest median over its fastest."""
    measured = _measured(result)
    rows = []
    for name, column in _knobs(measured).items():
        medians = measured.groupby(column)["objective"].median()
        rows.append((name, medians.max() / medians.min()))
    return pd.DataFrame(rows, columns=["parameter", "factor"])


def slice(result: Any, knob: str, ax: "Axes | None" = None) -> "Axes":
    """Draw the objective over the values of one knob, with the best of each value."""
    ax = _axes(ax)
    table = _measured(result)
    column = _column(table, knob)
    positions, labels = _ranks_and_labels(table[column])
    ax.plot(positions, table["objective"], "o", alpha=0.6, color=MEASURED, label="measured")
    best = table["objective"].groupby(positions).min()
    ax.plot(best.index, best, color=PREDICTED, label="best of each value")
    ax.set_xticks(range(len(labels)), labels)
    _scale(ax, table["objective"])
    return _labeled(ax, knob, _unit(result))


def contour(result: Any, knobs: Sequence[str], ax: "Axes | None" = None) -> "Axes":
    """Draw a heat map of two knobs: the best that was measured of each pair of values."""
    ax = _axes(ax)
    table = _measured(result)
    if len(knobs) != 2:
        known = ", ".join(_knobs(table))
        raise UsageError(f"a heat map needs two knobs: give knobs=(X, Y) out of {known}")
    across, up = knobs
    grid = table.pivot_table(
        values="objective",
        index=_column(table, up),
        columns=_column(table, across),
        aggfunc="min",
    )
    image = ax.imshow(grid, origin="lower", aspect="auto", cmap="viridis_r")
    ax.set_xticks(range(grid.shape[1]), map(str, grid.columns))
    ax.set_yticks(range(grid.shape[0]), map(str, grid.index))
    ax.figure.colorbar(image, ax=ax, label=_unit(result))
    return _labeled(ax, across, up)


def ratios(result: Any, ax: "Axes | None" = None) -> "Axes":
    """Draw the speed of all contenders against the default, with 99 % intervals.

    ``result`` is a search, or a campaign, whose winners are drawn.
    """
    ax = _axes(ax)
    search_or_campaign = _search_of(result)
    if hasattr(search_or_campaign, "contenders"):
        # The first is the default itself.
        all_named = [(c.name, c) for c in search_or_campaign.contenders[1:]]
    else:
        all_named = [(str(r.problem), r.winner) for r in search_or_campaign.results]
    # A contender that failed, or was never compared, has no ratio.
    named = [(name, contender) for name, contender in all_named if math.isfinite(contender.ratio)]
    names = [name for name, _ in named]
    contenders = [contender for _, contender in named]

    ratio = [c.ratio for c in contenders]
    below = [c.ratio - c.ratio_low for c in contenders]
    above = [c.ratio_high - c.ratio for c in contenders]
    rows = range(len(contenders))
    ax.errorbar(
        ratio,
        rows,
        xerr=[below, above],
        fmt="o",
        color=MEASURED,
        capsize=3,
    )
    ax.axvline(1, ls="--", lw=1, color=OTHER)
    ax.set_yticks(rows, names)
    return _labeled(ax, "speed against the default (99 % interval)", "")


def pareto_front(
    result: Any, x: str = "time_ms", y: str = "energy_mj", ax: "Axes | None" = None
) -> "Axes":
    """Draw the verified configurations of a Pareto front by two of their columns."""
    ax = _axes(ax)
    table = _table(result)
    require_known("column", (x, y), table.columns)
    front = table[table["front"]].sort_values(x)
    dominated = table[~table["front"]]
    ax.plot(dominated[x], dominated[y], "o", color=OTHER, label="dominated")
    ax.step(front[x], front[y], where="post", marker="o", color=MEASURED, label="front")
    return _labeled(ax, x, y)


def learning_curve(curve: pd.DataFrame, ax: "Axes | None" = None) -> "Axes":
    """Draw the table of `foretune.models.learning_curve`: error over training rows."""
    is_curve = isinstance(curve, pd.DataFrame) and {"rows", "median_ape"} <= set(curve)
    if not is_curve:
        raise UsageError("give the table of foretune.models.learning_curve, not a result")
    ax = _axes(ax)
    ax.plot(curve["rows"], 100 * curve["median_ape"], "o-", color=MEASURED)
    ax.set_xscale("log")
    return _labeled(ax, "rows in training", "median error on held-out problems, %")


def power(result: Any, ax: "Axes | None" = None) -> "Axes":
    """Draw the mean power of every metered measurement, in order."""
    ax = _axes(ax)
    table = _table(result)
    if not table["power_w"].notna().any():
        raise UsageError("power was not metered: tune with power=True on a machine with a meter")
    ax.plot(np.arange(1, len(table) + 1), table["power_w"], "o-", color=MEASURED)
    return _labeled(ax, "measurement", "power, W")


def _axes(ax: "Axes | None") -> "Axes":
    """Return the given axes, or those of a new figure."""
    require("matplotlib", "plot", "foretune.plot")
    from matplotlib import pyplot

    if ax is not None:
        return ax
    _, new_axes = pyplot.subplots(layout="constrained")
    return new_axes


def _scale(ax: "Axes", values: pd.Series) -> None:
    """Make the y-axis logarithmic if the values span a factor of ten."""
    finite = values[np.isfinite(values)]
    is_large = finite.max() > LARGE_RANGE * finite.min() > 0
    ax.set_yscale("log" if is_large else "linear")


def _labeled(ax: "Axes", x: str, y: str) -> "Axes":
    """Label the axes, and add a legend if anything has a label."""
    ax.set(xlabel=x, ylabel=y)
    handles, _ = ax.get_legend_handles_labels()
    if handles:
        ax.legend(frameon=False)
    return ax


def _search_of(result: Any) -> Any:
    """Return the search in the result of a tuned function; other results unchanged."""
    return getattr(result, "result", result)


def _table(result: Any) -> pd.DataFrame:
    return result if isinstance(result, pd.DataFrame) else result.to_frame()


def _measured(result: Any) -> pd.DataFrame:
    """Return the rows that did not fail."""
    table = _table(result)
    return table[np.isfinite(table["objective"])]


def _held_out(result: Any) -> pd.DataFrame:
    """Return predictions beside the truth: of a training's first target, or of a search."""
    held_out = getattr(getattr(result, "validation", result), "held_out", None)
    if held_out is not None:
        if not held_out:
            raise UsageError("no problem was held out: there is nothing to draw")
        return next(iter(held_out.values()))
    names = {"time_ms": "truth", "predicted_ms": "prediction", "low_ms": "low", "high_ms": "high"}
    table = _table(result).rename(columns=names)
    return table.dropna(subset=["truth", "prediction"])


def _unit(result: Any) -> str:
    """Return name and unit of the objective, for the label of an axis."""
    objective = getattr(_search_of(result), "objective", None)
    if objective is None:
        return "objective"
    return f"{objective.value}, {objective.unit}"


def _knobs(table: pd.DataFrame) -> dict[str, str]:
    """Return the knobs with more than one value, and their columns."""
    columns = [c for c in table if c.startswith("config.") and table[c].nunique() > 1]
    return {column.removeprefix("config."): column for column in columns}


def _column(table: pd.DataFrame, knob: str) -> str:
    """Return a knob's column; raise UnknownName if there is none."""
    known = [c.removeprefix("config.") for c in table if c.startswith("config.")]
    require_known("knob", knob, known)
    return f"config.{knob}"


def _ranks_and_labels(values: pd.Series) -> tuple[np.ndarray, list[str]]:
    """Return each value's rank among the sorted distinct values, and these as labels."""
    # Numbers come before texts, which they cannot be compared with.
    ordered = sorted(values.unique(), key=lambda value: (isinstance(value, str), value))
    ranks = [ordered.index(value) for value in values]
    return np.array(ranks), [str(value) for value in ordered]
