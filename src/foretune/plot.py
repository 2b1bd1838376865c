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

MEASURED, PREDICTED, FAILED, OTHER = "#0072b2", "#e69f00", "#d55e00", "0.45"


def history(result: Any, ax: "Axes | None" = None) -> "Axes":
    """Draw every measurement of a search in order, the best so far, and the default."""
    ax, table = _axes(ax), _table(result)
    number = np.arange(1, len(table) + 1)
    failed = ~np.isfinite(table["objective"])
    ax.plot(number, table["objective"], "o", color=MEASURED, label="measured")
    ax.step(number, table["best"], where="post", color=MEASURED, label="best so far")
    default = getattr(getattr(result, "result", result), "searched_default", None)
    if default is not None:
        ax.axhline(default, ls="--", lw=1, color=OTHER, label="default")
    if failed.any():
        height = [float(table["best"].max())] * int(failed.sum())
        ax.plot(number[failed], height, "x", color=FAILED, label="failed")
    _scale(ax, table["objective"])
    return _labeled(ax, "measurement", _unit(result))


def predicted_measured(result: Any, ax: "Axes | None" = None) -> "Axes":
    """Draw predicted over measured times, with 90 % intervals; the title has their coverage.

    ``result`` is a search with a predictor, a training, or a table with the columns ``truth``,
    ``prediction``, ``low`` and ``high``.
    """
    ax, table = _axes(ax), _held_out(result)
    if table.empty:
        raise UsageError("nothing was predicted: tune with a predictor, or validate a training")
    low, high = table["prediction"] - table["low"], table["high"] - table["prediction"]
    ends = [table[["truth", "prediction"]].min().min(), table[["truth", "prediction"]].max().max()]
    ax.errorbar(
        table["truth"],
        table["prediction"],
        [low.clip(lower=0), high.clip(lower=0)],
        fmt="o",
        ms=4,
        lw=1,
        color=PREDICTED,
        mfc=MEASURED,
        mec=MEASURED,
    )
    ax.plot(ends, ends, lw=1, color=OTHER)
    ax.set(xscale="log", yscale="log")
    if table["low"].notna().any():
        inside = table["truth"].between(table["low"], table["high"]).mean()
        ax.set_title(f"{inside:.0%} of {len(table)} in the 90 % interval")
    return _labeled(ax, "measured, ms", "predicted, ms")


def importance(result: Any, ax: "Axes | None" = None) -> "Axes":
    """Draw how much each knob matters: its slowest value over its fastest.

    ``result`` is a search, for the medians of its measurements, or the table of
    `foretune.models.parameter_importance`, for predictions.
    """
    ax, table = _axes(ax), result
    if not (isinstance(result, pd.DataFrame) and "factor" in result):
        measured, rows = _measured(result), []
        for name, column in _knobs(measured).items():
            medians = measured.groupby(column)["objective"].median()
            rows.append((name, medians.max() / medians.min()))
        table = pd.DataFrame(rows, columns=["parameter", "factor"])
    table = table.sort_values("factor")
    ax.barh(table["parameter"].astype(str), table["factor"] - 1, left=1, color=MEASURED)
    return _labeled(ax, "slowest over fastest value", "")


def slice(result: Any, knob: str, ax: "Axes | None" = None) -> "Axes":
    """Draw the objective over the values of one knob, with the best of each value."""
    ax, table = _axes(ax), _measured(result)
    column = _column(table, knob)
    positions, labels = _places(table[column])
    ax.plot(positions, table["objective"], "o", alpha=0.6, color=MEASURED, label="measured")
    best = table["objective"].groupby(positions).min()
    ax.plot(best.index, best, color=PREDICTED, label="best of each value")
    ax.set_xticks(range(len(labels)), labels)
    _scale(ax, table["objective"])
    return _labeled(ax, knob, _unit(result))


def contour(result: Any, knobs: Sequence[str], ax: "Axes | None" = None) -> "Axes":
    """Draw a heat map of two knobs: the best that was measured of each pair of values."""
    ax, table = _axes(ax), _measured(result)
    try:
        across, up = knobs
    except ValueError:
        own = ", ".join(_knobs(table))
        raise UsageError(f"a heat map needs two knobs: give knobs=(X, Y) out of {own}") from None
    grid = table.pivot_table("objective", _column(table, up), _column(table, across), "min")
    image = ax.imshow(grid, origin="lower", aspect="auto", cmap="viridis_r")
    ax.set_xticks(range(grid.shape[1]), map(str, grid.columns))
    ax.set_yticks(range(grid.shape[0]), map(str, grid.index))
    ax.figure.colorbar(image, ax=ax, label=_unit(result))
    return _labeled(ax, across, up)


def ratios(result: Any, ax: "Axes | None" = None) -> "Axes":
    """Draw the speed of all contenders against the default, with 99 % intervals.

    ``result`` is a search, or a campaign, whose winners are drawn.
    """
    ax, result = _axes(ax), getattr(result, "result", result)
    if hasattr(result, "contenders"):
        shown = [(c.name, c) for c in result.contenders[1:]]
    else:
        shown = [(str(r.problem), r.winner) for r in result.results]
    shown = [(name, c) for name, c in shown if math.isfinite(c.ratio)]
    rows = range(len(shown))
    middle = [c.ratio for _, c in shown]
    ends = [[c.ratio - c.ratio_low for _, c in shown], [c.ratio_high - c.ratio for _, c in shown]]
    ax.errorbar(middle, rows, xerr=ends, fmt="o", color=MEASURED, capsize=3)
    ax.axvline(1, ls="--", lw=1, color=OTHER)
    ax.set_yticks(rows, [name for name, _ in shown])
    return _labeled(ax, "speed against the default (99 % interval)", "")


def pareto_front(
    result: Any, x: str = "time_ms", y: str = "energy_mj", ax: "Axes | None" = None
) -> "Axes":
    """Draw the verified configurations of a Pareto front by two of their columns."""
    ax, table = _axes(ax), _table(result)
    require_known("column", (x, y), table.columns)
    front = table[table["front"]].sort_values(x)
    rest = table[~table["front"]]
    ax.plot(rest[x], rest[y], "o", color=OTHER, label="dominated")
    ax.step(front[x], front[y], where="post", marker="o", color=MEASURED, label="front")
    return _labeled(ax, x, y)


def learning_curve(curve: pd.DataFrame, ax: "Axes | None" = None) -> "Axes":
    """Draw the table of `foretune.models.learning_curve`: error over training rows."""
    if not (isinstance(curve, pd.DataFrame) and {"rows", "median_ape"} <= {*curve}):
        raise UsageError("give the table of foretune.models.learning_curve, not a result")
    ax = _axes(ax)
    ax.plot(curve["rows"], 100 * curve["median_ape"], "o-", color=MEASURED)
    ax.set_xscale("log")
    return _labeled(ax, "rows in training", "median error on held-out problems, %")


def power(result: Any, ax: "Axes | None" = None) -> "Axes":
    """Draw the mean power of every metered measurement, in order."""
    ax, table = _axes(ax), _table(result)
    if not table["power_w"].notna().any():
        raise UsageError("power was not metered: tune with power=True on a machine with a meter")
    ax.plot(np.arange(1, len(table) + 1), table["power_w"], "o-", color=MEASURED)
    return _labeled(ax, "measurement", "power, W")


def _axes(ax: "Axes | None") -> "Axes":
    require("matplotlib", "plot", "foretune.plot")
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1] if ax is None else ax


def _scale(ax: "Axes", values: pd.Series) -> None:
    """Make the y-axis logarithmic if the values span a factor of ten."""
    known = values[np.isfinite(values)]
    ax.set_yscale("log" if known.max() > 10 * known.min() > 0 else "linear")


def _labeled(ax: "Axes", x: str, y: str) -> "Axes":
    ax.set(xlabel=x, ylabel=y)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False)
    return ax


def _table(result: Any) -> pd.DataFrame:
    return result if isinstance(result, pd.DataFrame) else result.to_frame()


def _measured(result: Any) -> pd.DataFrame:
    table = _table(result)
    return table[np.isfinite(table["objective"])]


def _held_out(result: Any) -> pd.DataFrame:
    held_out = getattr(getattr(result, "validation", result), "held_out", None)
    if held_out is not None:
        if not held_out:
            raise UsageError("no problem was held out: there is nothing to draw")
        return next(iter(held_out.values()))
    names = {"time_ms": "truth", "predicted_ms": "prediction", "low_ms": "low", "high_ms": "high"}
    table = _table(result).rename(columns=names)
    return table.dropna(subset=["truth", "prediction"])


def _unit(result: Any) -> str:
    objective = getattr(getattr(result, "result", result), "objective", None)
    return "objective" if objective is None else f"{objective.value}, {objective.unit}"


def _knobs(table: pd.DataFrame) -> dict[str, str]:
    columns = [c for c in table if c.startswith("config.") and table[c].nunique() > 1]
    return {column.removeprefix("config."): column for column in columns}


def _column(table: pd.DataFrame, knob: str) -> str:
    known = [c.removeprefix("config.") for c in table if c.startswith("config.")]
    require_known("knob", knob, known)
    return f"config.{knob}"


def _places(values: pd.Series) -> tuple[np.ndarray, list[str]]:
    """Return each value's rank among the sorted distinct values, and these as labels."""
    known = sorted(values.unique(), key=lambda v: (isinstance(v, str), v))
    return np.array([known.index(v) for v in values]), [str(v) for v in known]
