"""Draw the README's picture: how fast searches get close to the best of recorded GPU spaces.

    python benchmarks/picture.py SPACES docs/evaluations.svg [--only convolution,gemm__]

Replays every space of SPACES that has tables of the same kernel on other devices (`search.py` says
what SPACES holds): Foretune with a predictor learned on those other devices, Foretune alone,
Optuna's TPE, and random search. Draws the mean over spaces of the median share of the best
performance, and prints it after 1, 5, 10, 20 and 50 evaluations.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from machine import markdown
from matplotlib import rc_context
from matplotlib.figure import Figure
from spaces import complete_spaces

from foretune.datasets import read_runs
from foretune.support.console import progress_bar
from search import has_prior, search  # noqa: TID251

LINES = {
    ("surrogate", "leave-device-out"): ("Foretune, predictor from other GPUs", "#0b6fb8", "-"),
    ("surrogate", "alone"): ("Foretune, no predictor", "#0b6fb8", "--"),
    ("tpe", "alone"): ("Optuna TPE", "#d1495b", "-"),
    ("random", "alone"): ("random search", "#8a8f98", ":"),
}
"""Searcher and prior: label, color and dashes."""
SHOWN = (1, 5, 10, 20, 50)


def main() -> None:
    """Search, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("spaces", type=Path, help="folder of run tables")
    parser.add_argument("picture", type=Path, help="SVG to write")
    parser.add_argument("--only", default="convolution,dedispersion,gemm__,pnpoly")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("picture-runs"), help="folder of results")
    parser.set_defaults(budget=max(SHOWN), seed=0, jobs=1)
    options = parser.parse_args()

    # Only spaces whose kernel has a table of another device.
    spaces = complete_spaces(options.spaces, options.only)
    kernels = {kernel_of(space.name) for space in spaces}
    tables = sorted(options.spaces.glob("*.parquet"))
    runs = pd.concat([read_runs(table) for table in tables if kernel_of(table.stem) in kernels])
    spaces = [space for space in spaces if has_prior(runs, space)]

    # The curve of a searcher: over spaces the mean of the median over repeats.
    curves = {}
    with progress_bar() as progress:
        progress.start("replaying", len(spaces) * len(LINES))
        for (name, prior), (label, *_) in LINES.items():
            medians = []
            for space in spaces:
                (result,) = search(space, [name], runs, options, prior, progress)
                medians.append(np.median(result.curves, axis=0))
            curves[label] = np.mean(medians, axis=0)

    rows = [[label, *(f"{curve[n - 1]:.3f}" for n in SHOWN)] for label, curve in curves.items()]
    print(f"{len(spaces)} spaces, {options.repeats} repeats\n")
    print(markdown(["", *map(str, SHOWN)], rows))
    draw(curves, len(spaces), options.picture)


def kernel_of(name: str) -> str:
    """Return the kernel in the name of a table, which ends in the device."""
    return name.partition("__")[0]


def draw(curves: dict[str, np.ndarray], spaces: int, path: Path) -> None:
    """Write the curves, by evaluation, to ``path``."""
    figure = Figure(figsize=(7.2, 3.4), layout="constrained", facecolor="white")
    axis = figure.subplots()
    for label, color, dashes in LINES.values():
        steps = np.arange(1, len(curves[label]) + 1)
        axis.plot(steps, curves[label], dashes, color=color, linewidth=2, label=label)
    axis.set(xlabel="configurations measured", ylabel="share of the best performance found")
    axis.set(xlim=(1, max(SHOWN)), ylim=(None, 1.01), xticks=SHOWN)
    axis.set_title(f"Mean over {spaces} recorded GPU tuning spaces", fontsize=10)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.grid(axis="y", color="#e4e7ec", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9, loc="lower right")
    with rc_context({"svg.hashsalt": "foretune"}):  # the same curves, the same file
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
