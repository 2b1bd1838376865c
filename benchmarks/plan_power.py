"""How well the watts of operators and deployments are predicted: prints tables.

Run: ``python benchmarks/plan_power.py [--operators DIR] [--watts DIR] [--write]``. Powers are those
of AIConfigurator's tables (Apache-2.0): the ones in ``--operators DIR`` (default: the package
aiconfigurator-core), and ``power_h200_*.parquet`` in ``--watts DIR`` (default
``$FORETUNE_SHARED_DATA/llm``), which take their times from the newest tables, having none of their
own. ``--write`` rewrites the shipped forms, ``plan/cost/power.csv``.

Rows that are known not to be of their operator are left out of the fit, and scored apart:

- GEMMs with block scales: their times in the tables are those of launches one by one.
- Decode attention that uses less than half of the bandwidth: its recorded power does not depend on
  the bandwidth used (see the table of medians), so it belongs to earlier launches.

The remaining rows are not clean either: GEMMs of certain numbers of rows (2, 17, 64, 128, …) were
recorded at half the power of their neighbors, as if their GPU had waited between launches. The
table of alike operators shows how much records differ that should have the same power.
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pandas as pd
from power_models import MODELS, csv_lines, fit_forms, log_use
from power_records import SIZES, USED, measured
from published_power import published_runs

from foretune.plan.cost.kinds import KINDS
from foretune.plan.cost.power import METERED_SYSTEMS, PowerModel, shipped_models
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import OperatorTables, default_folders
from foretune.plan.serve.deployments.power import UNMODELED_ACTIVE_SHARE
from foretune.support.operator_package import installed_tables

FORMS = Path(__file__).resolve().parents[1] / "plan" / "cost" / "power.csv"
LOWEST_QUANTILE = 0.01
"""Quantile of the powers that shows what an awake GPU draws."""
SAME_USE = 0.02
"""Difference in the logarithm of what is used below which operators use the same."""
EDGES = (0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 2.0)
"""Bounds of ranges of what is used."""

Tables = dict[str, pd.DataFrame]
"""Kernel -> its rows, see `measured`."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", type=Path, default=installed_tables())
    shared = Path(os.environ.get("FORETUNE_SHARED_DATA", "")) / "llm"
    parser.add_argument("--watts", type=Path, default=shared)
    parser.add_argument("--write", action="store_true", help="rewrite the shipped forms")
    arguments = parser.parse_args()

    all_rows = measured(arguments.operators, arguments.watts)
    sound_rows = {kernel: rows[rows["sound"]] for kernel, rows in all_rows.items()}
    forms = {kernel: fit_forms(rows) for kernel, rows in sound_rows.items()}
    _print_awake(pd.concat(all_rows.values()))
    _print_forms(forms)
    print("\nMedian / mean error of power, %; rows that are known to be of their operator")
    for kernel, rows in sound_rows.items():
        _print_scores(kernel, rows)
    print("\nThe same, all rows that were recorded")
    for kernel, rows in all_rows.items():
        if not rows["sound"].all():
            _print_scores(kernel, rows)
    _print_repeatability(sound_rows)
    _print_by_use(all_rows)
    _print_published()
    if arguments.write:
        _write_forms(forms)


def _write_forms(forms: dict[str, dict[str, PowerModel]]) -> None:
    """Rewrite the shipped forms; the comments of the file stay."""
    shipped = FORMS.read_text(encoding="utf-8").splitlines()
    comments = [line for line in shipped if line.startswith("#")]
    FORMS.write_text("\n".join([*comments, *csv_lines(forms)]) + "\n", encoding="utf-8")


def _splits(kernel: str, rows: pd.DataFrame) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each split, and the rows that it holds out."""
    rng = np.random.default_rng(0)
    axes = [name for name in KINDS[kernel].axes if name in rows]
    other_sizes = [name for name in axes if name not in SIZES[kernel]]
    for name, columns in (("problems", other_sizes), ("sizes", SIZES[kernel])):
        group = rows.groupby(columns, dropna=False).ngroup().to_numpy()
        n_groups = group.max() + 1
        n_held_out = max(n_groups // 5, 1)
        yield name, np.isin(group, rng.permutation(n_groups)[:n_held_out])

    systems = sorted(rows["system"].unique())
    if len(systems) > 1:
        for system in systems:
            yield system, rows["system"] == system


def _print_scores(kernel: str, rows: pd.DataFrame) -> None:
    print(f"{kernel} held out".ljust(28), "rows".rjust(7), *(f"{name:>11}" for name in MODELS))
    for name, is_held_out in _splits(kernel, rows):
        train = rows[~is_held_out]
        test = rows[is_held_out]
        cells = []
        for predict in MODELS.values():
            error = 100 * np.abs(predict(train, test) / test["share"] - 1)
            cells.append(f"{np.median(error):5.1f} /{error.mean():4.0f}".rjust(11))
        print(f"  {name}".ljust(28), f"{len(test):7d}", *cells)


def _print_awake(rows: pd.DataFrame) -> None:
    print("Lowest hundredth of all powers, share of the limit (shipped)")
    lowest_of_kernel = rows.groupby(["system", "kernel"])["share"].quantile(LOWEST_QUANTILE)
    lowest = lowest_of_kernel.groupby("system").min()
    for system, share in lowest.items():
        print(f"  {system:12} {share:.3f} ({METERED_SYSTEMS[system][1]})")


def _print_forms(forms: dict[str, dict[str, PowerModel]]) -> None:
    print("\nForms (shipped): awake + a·computing^p + b·memory^q, as a p b q")
    for kernel, form_of_system in forms.items():
        for system, form in form_of_system.items():
            shipped = shipped_models().get(kernel, {}).get(system)
            shipped_values = "" if shipped is None else _format_form(shipped)
            print(f"  {kernel:20} {system:12} {_format_form(form)}   ({shipped_values})")


def _format_form(form: PowerModel) -> str:
    return " ".join(f"{value:5.2f}" for value in astuple(form))


def _print_repeatability(tables: Tables) -> None:
    """Print how much records differ that should have the same power."""
    print("\nMedian / mean difference of records next to each other in size that use the same, %")
    for kernel, rows in tables.items():
        size = SIZES[kernel][-1]
        kind = KINDS[kernel]
        other_columns = dict.fromkeys(
            ["config.format", "config.kv_format", *kind.exact, *kind.axes]
        )
        other_columns.pop(size, None)
        by = ["system", *(name for name in other_columns if name in rows)]

        # Neighbors in size, all else equal.
        logs = rows.assign(**dict(zip(USED, log_use(rows).T, strict=True)))
        groups = logs.sort_values([*by, size]).groupby(by, dropna=False, observed=True)
        use_difference = groups[USED].diff().abs()
        power_difference = groups["share"].pct_change().abs()

        # What limits an operator must be used alike.
        ordered = logs.loc[use_difference.index]
        is_memory_bound = ordered["memory"] > ordered["computing"]
        difference = use_difference["memory"].where(is_memory_bound, use_difference["computing"])
        percent = 100 * power_difference[difference < SAME_USE]
        figures = f"{percent.median():5.1f} /{percent.mean():4.0f}"
        print(f"  {kernel:20} {len(percent):6d} pairs {figures}")


def _print_by_use(tables: Tables) -> None:
    print("\nMedian share of the limit by the larger share of peak rates in use")
    rows = pd.concat(tables.values())
    labels = [f"<{edge:.2f}" for edge in EDGES[1:]]
    used = pd.cut(rows[USED].max(axis=1), EDGES, right=False, labels=labels).rename("in use")
    medians = rows.pivot_table("share", ["kernel", "system"], used, "median", observed=True)
    print(medians.to_string(float_format="{:.2f}".format, na_rep=""))


def _print_published() -> None:
    folders = default_folders()
    timers = StepTimerFactory(OperatorTables(folders[0]) if folders else None)
    print("\nWatts of GPUs that serve at a published speed: if they worked all the time, if they")
    print("waited between operators, as is assumed, and as published")
    for run in published_runs():
        busy_w, assumed_w = run.predicted(timers)
        waiting_w = busy_w - (busy_w - assumed_w) / (1.0 - UNMODELED_ACTIVE_SHARE)
        model = run.model.name.split("/")[-1]
        name = f"{model} {run.system} x {run.running}"
        watts = " ".join(f"{w:5.0f}" for w in (busy_w, waiting_w, assumed_w, run.watts))
        print(f"  {name:32} {watts}  {run.source}")


if __name__ == "__main__":
    main()
