"""Does the fastest configuration take the least energy? For every metered problem.

    PYTHONPATH=src python benchmarks/gpu/energy.py nvidia-h100-80gb
    PYTHONPATH=src python benchmarks/gpu/energy.py nvidia-h100-80gb --least 2

Reads the windows of power of a shipped table. Time and energy are per launch in the window.
"""

import argparse

import pandas as pd
from stage import labels, markdown

from foretune.datasets import card, load
from foretune.datasets.runs import configurations_of, problems_of

TIME = "counter.window_launch_ms"
ENERGY = "energy_mj"
POWER = "power_w"
COLUMNS = (
    "kernel",
    "problem",
    "configs",
    "fastest",
    "ms; W; mJ",
    "most economical",
    "of least power",
)
"""The last two: configuration, ms; W; mJ, and time and energy beside the fastest."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", help="name of a shipped table")
    parser.add_argument("--least", type=int, default=3, help="configurations of a problem")
    options = parser.parse_args(argv)
    print(report(load(options.table), card(options.table).device, options.least))


def metered(runs: pd.DataFrame, least: int) -> list[pd.DataFrame]:
    """Return the metered configurations of problems with ``least`` or more; first windows only."""
    rows = runs[runs[POWER].notna() & runs[TIME].notna()] if TIME in runs else runs.iloc[:0]
    rows = rows[~labels(rows, "problem", "config").duplicated()].reset_index(drop=True)
    parts = [part for _, part in rows.groupby(labels(rows, "problem"), sort=False)]
    return sorted((p for p in parts if len(p) >= least), key=lambda p: str(p["kernel"].iloc[0]))


def report(runs: pd.DataFrame, device: str, least: int) -> str:
    """Return a row per problem, and how often the fastest is the most economical, as Markdown."""
    parts = metered(runs, least)
    if not parts:
        return f"no problem has {least} metered configurations"
    rows = []
    same = 0
    extra = []
    for part in parts:
        fast, lean, frugal = (part.loc[part[what].idxmin()] for what in (TIME, ENERGY, POWER))
        same += fast.name == lean.name
        extra.append((fast[ENERGY] / lean[ENERGY] - 1, lean[TIME] / fast[TIME] - 1))
        rows.append(
            [
                str(fast["kernel"]),
                str(problems_of(part)[0]).replace(",cache=cold", ""),
                str(len(part)),
                _config(fast),
                _numbers(fast),
                _beside(lean, fast),
                _beside(frugal, fast),
            ]
        )
    error = 100 * (runs["counter.power_error_w"] / runs[POWER]).median()
    most_energy, most_time = (100 * max(e) for e in zip(*extra, strict=True))
    return (
        f"{device}; {len(parts)} problems with at least {least} metered configurations; standard "
        f"error of a window's power {error:.1f} % (median).\n\n{markdown(list(COLUMNS), rows)}\n"
        f"The fastest is the most economical on {same} of {len(parts)}. It takes at most "
        f"{most_energy:.1f} % more energy than the most economical, which takes at most "
        f"{most_time:.1f} % more time."
    )


def _numbers(row: pd.Series) -> str:
    return f"{row[TIME]:.4g}; {row[POWER]:.0f}; {row[ENERGY]:.3g}"


def _beside(other: pd.Series, fast: pd.Series) -> str:
    """Return another configuration, with its time and energy beside those of the fastest."""
    if other.name == fast.name:
        return "the same"
    time, energy = (100 * (other[c] / fast[c] - 1) for c in (TIME, ENERGY))
    return f"{_config(other)}: {_numbers(other)} (time {time:+.0f} %, energy {energy:+.1f} %)"


def _config(row: pd.Series) -> str:
    (config,) = configurations_of(row.to_frame().T)
    return " ".join(str(value) for value in dict(config).values())


if __name__ == "__main__":
    main()
