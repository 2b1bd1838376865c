"""Makes of what the stages on a GPU measured the run table and the card that Foretune ships.

    PYTHONPATH=src python benchmarks/gpu/ship.py runs nvidia-h100-80gb --system "Linux, driver 580"

``--sweep``, ``--breadth``, ``--power`` and ``--verify`` say with which options the stages ran: the
card's command has them. Then ``benchmarks/shipped.py NAME`` trains and judges the predictors.
"""

import argparse
import sys
from pathlib import Path

import pandas as pd
from breadth import kernel_by_name
from stage import markdown

from foretune.datasets import DatasetCard, read_runs, write_runs
from foretune.datasets.catalog import SHIPPED, card_text
from foretune.datasets.schema import columns_of
from foretune.device import find_device
from foretune.errors import ForetuneError
from foretune.measurement import Status

STAGES = ("sweep", "breadth", "power", "verify")
PROTOCOL = (
    "Column stage says which program measured a row, role why: default, list and spread were "
    "chosen before, near is beside the fastest so far, repeat is measured again, later; design, "
    "repeat and reference (one product again and again, for drift) of stage power are windows of "
    "power; finalist (stage verify) are the fastest and the default in turn with the library's "
    "call. Times: a result is checked once against higher precision after its output was spoilt; "
    "then 6 to 20 launches (at least 3, 30 ms at most) between events, the last-level cache "
    "overwritten before each; time_ms is the median. Clocks are recorded, not locked. "
)
ABOUT_BREADTH = (
    "Rows of stage breadth are whole lists, of the case that column case names: every tile with "
    "every launch, thinned to a Latin hypercube, with the default in front. "
)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, help="the folder of the stages (--out)")
    parser.add_argument("name", help="name of the table, e.g. nvidia-h100-80gb")
    parser.add_argument("--system", required=True, help="operating system, driver, host")
    for stage in STAGES:
        parser.add_argument(f"--{stage}", default="", metavar="OPTIONS", help=f"of {stage}.py")
    parser.add_argument("--provisional", default="", metavar="WHY", help="not to be relied on")
    parser.add_argument("--to", type=Path, default=SHIPPED, metavar="FOLDER")
    options = parser.parse_args(argv)
    table = merged(options.runs)
    card = card_of(table, options)
    options.to.mkdir(parents=True, exist_ok=True)
    write_runs(options.to / f"{options.name}.parquet", table)
    (options.to / f"{options.name}.json").write_text(card_text(card), encoding="utf-8")
    print(report(table))


def merged(folder: Path) -> pd.DataFrame:
    """Return the rows of all stages that ran, each with the name of its ``stage``.

    Raises:
        ForetuneError: no stage ran, or they ran on several devices.
    """
    paths = {stage: folder / f"{stage}.parquet" for stage in STAGES}
    parts = [read_runs(path).assign(stage=s) for s, path in paths.items() if path.exists()]
    if not parts:
        raise ForetuneError(f"{folder} has none of {', '.join(p.name for p in paths.values())}")
    table = pd.concat(parts, ignore_index=True)
    table.loc[table["stage"] == "verify", "role"] = "finalist"  # as in tables of CPUs
    if len(devices := table["device"].unique()) > 1:
        raise ForetuneError(f"{folder} has rows of {', '.join(devices)}: ship one device")
    groups = [c for g in ("problem", "config") for c in columns_of(table, g)]
    others = [c for c in table if c not in groups and "." not in c and c != "time_ms_samples"]
    counters = sorted(columns_of(table, "counter"))
    front = ["kernel", "device", "status"]
    rest = [c for c in others if c not in front]
    order = [*front, *groups, *rest, "time_ms_samples", *counters, *columns_of(table, "device")]
    return table[order]


def card_of(table: pd.DataFrame, options: argparse.Namespace) -> DatasetCard:
    """Return the card of the merged table.

    Raises:
        ForetuneError: The code of a kernel changed since it was measured.
    """
    name = str(table["device"].iloc[0])
    specs = {
        c.removeprefix("device."): float(table[c].iloc[0]) for c in columns_of(table, "device")
    }
    environment = str(table["environment"].iloc[0]).rpartition(",")[0]
    command = [
        f"python benchmarks/gpu/{stage}.py --out runs {getattr(options, stage)}".strip()
        for stage in STAGES
        if (table["stage"] == stage).any()
    ]
    made = f'python benchmarks/gpu/ship.py runs {options.name} --system "{options.system}"'
    return DatasetCard(
        name=options.name,
        device=name,
        architecture=find_device(name).architecture,
        specs=specs,
        system=f"{options.system}; {environment}",
        began=str(table["recorded_at"].min()),
        ended=str(table["recorded_at"].max()),
        protocol=PROTOCOL + about_breadth(table) + about_power(table),
        command="; ".join([*command, made]),
        licence="MIT, as Foretune",
        kernels=hashes(table),
        provisional=options.provisional,
    )


def hashes(table: pd.DataFrame) -> dict[str, str]:
    """Return the hashes of the code of the kernels in ``table``.

    Raises:
        ForetuneError: The code of a kernel changed since it was measured.
    """
    known = kernel_by_name()
    found = {}
    for name in dict.fromkeys(table["kernel"]):
        kernel = known[name]
        rows = table[table["kernel"] == name]
        measured = {str(e).split()[-1] for e in rows["environment"].unique()}
        if measured != {kernel.source_hash[:8]}:
            raise ForetuneError(f"the code of {kernel.name} has changed since it was measured")
        found[kernel.name] = kernel.source_hash
    return found


def about_breadth(table: pd.DataFrame) -> str:
    """Return what its rows are, if there are any."""
    return ABOUT_BREADTH if (table["stage"] == "breadth").any() else ""


def about_power(table: pd.DataFrame) -> str:
    """Return how power was metered, as the rows have it."""
    rows = table[table["power_w"].notna()] if "power_w" in table else table.iloc[:0]
    if rows.empty:
        return "No power was metered."
    window = rows["counter.window_s"].median()
    ticks = rows["counter.ticks"].median()
    error = (100 * rows["counter.power_error_w"] / rows["power_w"]).median()
    idle = rows["counter.idle_w"].dropna()
    return (
        f"Power: {len(rows)} windows of {window:.1f} s, in which the energy counter ticks "
        f"{ticks:.0f} times; launches of a CUDA graph, two graphs in the queue, inputs in turn "
        "that the last-level cache does not hold (one set where problem.cache is warm); power_w is "
        f"the slope of the counter (standard error {error:.1f} %, median), energy_mj power times "
        "counter.window_launch_ms, the time of a launch in the window. Idle power "
        f"({idle.min():.0f} W before the windows) is not subtracted."
    )


def report(table: pd.DataFrame) -> str:
    """Return what the table holds, as Markdown."""
    rows = [
        [
            kernel,
            *(str(int((of["stage"] == stage).sum())) for stage in STAGES),
            str(int((of["status"] != Status.OK.value).sum())),
            str(len(of.filter(like="problem.").drop_duplicates())),
        ]
        for kernel, of in table.groupby("kernel")
    ]
    return markdown(["kernel", *STAGES, "failed", "problems"], rows)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ForetuneError as e:
        raise SystemExit(str(e)) from e
