"""Does what is foretold to fail on this GPU fail, and does what is foretold to run run?

    PYTHONPATH=src python benchmarks/gpu/unfit.py --out unfit.jsonl
    PYTHONPATH=src python benchmarks/gpu/unfit.py --replay       # no GPU: only compiles
    PYTHONPATH=src python benchmarks/gpu/unfit.py --minutes 0 --out unfit.jsonl    # prints a file

Ten entries of lists that ``foretune inspect --all-gpus`` calls impossible on the GPU that is there,
for different reasons and in different kernels, are compiled and launched, and so are ten that it
calls possible: a failure of one of these was missed. A process per kernel, all at the same time;
what is foretold to run is launched first. Results are compared with torch's. With ``--replay``,
Triton compiles for ``--device``, and a launch checks what a driver checks: shared memory, threads.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder)
    for folder in ("benchmarks", "benchmarks/gpu", "examples/kernels", "tests/replay_gpu")
)

import torch
from item_runner import Item, ItemList
from machine import markdown
from smoke_rows import REAL, Run, rows_of
from unfit_entries import SPOILED, TRIALS, Entry, chosen_entries

from foretune import local_device
from foretune.collect.compiled.gpu_targets import Target, get_target
from foretune.errors import describe_error

MAX_REASON = 72
"""Characters of a reason in the table."""
RESOURCES = ("shared memory", "threads")
"""Reasons whose numbers need not be those of the driver."""


def target_of(run: Run) -> Target:
    """Return the architecture of the GPU, or of the replayed one."""
    if REAL:
        return get_target(local_device("gpu").architecture)
    target: Target = run.driver.device_interface.target
    return target


def try_entries(run: Run) -> None:
    """Launch the chosen entries of one kernel."""
    for entry in chosen_entries(target_of(run)):
        if entry.trial == run.item:
            try_entry(run, entry)


def try_entry(run: Run, entry: Entry) -> None:
    """Launch an entry, and write down what happened."""
    trial = TRIALS[entry.trial]
    config = trial.configs()[entry.number]
    call = trial.make()
    if REAL:
        call.output.fill_(SPOILED)
    has_run = True
    is_right = True
    same_reason = False
    try:
        trial.kernel[call.grid(config)](**call.arguments, **config)
        happened = "runs"
        if REAL:
            torch.cuda.synchronize()
            expected = call.expected()
            error = float((call.output.double() - expected).norm() / expected.norm())
            is_right = error <= trial.limit
            happened = f"runs, error {error:.2g}"
    except Exception as e:
        has_run = False
        # As in what is foretold: the last line of the compiler's message is the reason.
        lines = [line.strip() for line in str(e).splitlines() if line.strip()]
        happened = f"{type(e).__name__}: {lines[-1]}" if lines else describe_error(e)
        same_reason = is_same(entry.reason, happened)
    names = ", ".join(f"{name}={value}" for name, value in trial.entries[entry.number].items())
    run.check(
        names,
        has_run != bool(entry.reason) and is_right,
        happened,
        reason=entry.reason,
        has_run=has_run,
        same_reason=same_reason,
    )


def is_same(reason: str, happened: str) -> bool:
    """Whether an entry failed as it was foretold to fail."""
    for resource in RESOURCES:
        if resource in reason:
            return resource in happened
    return reason == happened


def table(names: Sequence[str], out: Path) -> str:
    """Return a row per entry that was tried, and the counts."""
    tried = [row for name in names for row in rows_of(out, name) if "has_run" in row]
    broken = []
    for name in names:
        rows = rows_of(out, name)
        broken += [
            f"{TRIALS[name].title}: {row['detail']} {row.get('log', '')[-300:]}".strip()
            for row in rows
            if not row["ok"] and "has_run" not in row
        ]
        if not rows:
            broken.append(f"{TRIALS[name].title}: not begun")
    lines = [
        [
            TRIALS[row["item"]].title,
            row["what"],
            short(row["reason"] or "it may run"),
            short(row["detail"]),
            remark(row),
        ]
        for row in sorted(tried, key=lambda row: bool(row["reason"]))
    ]
    (head,) = rows_of(out, "")
    columns = ["kernel", "entry", "foretold", "what happened", ""]
    return "\n".join(
        [
            "### Foretold, and tried",
            "",
            f"{head['device']}; {head['versions']}",
            "",
            markdown(columns, lines),
            *broken,
            counts(tried, is_replayed=head["device"].startswith("replay of ")),
        ]
    )


def remark(row: dict[str, Any]) -> str:
    """Return what is wrong with a row, if anything is."""
    if not row["ok"]:
        return "WRONG"
    return "another reason" if row["reason"] and not row["same_reason"] else ""


def counts(tried: Sequence[dict[str, Any]], is_replayed: bool) -> str:
    """Return how often the foretelling was right."""
    unfit = [row for row in tried if row["reason"]]
    fit = [row for row in tried if not row["reason"]]
    n_false = sum(row["has_run"] for row in unfit)
    n_same = sum(row["same_reason"] for row in unfit)
    n_ran = sum(row["has_run"] for row in fit)
    n_right = sum(row["ok"] for row in fit)
    results = "results are not compared" if is_replayed else f"{n_right} with the right result"
    return (
        f"{len(unfit) - n_false} of {len(unfit)} that were foretold to fail do, {n_same} for this "
        f"reason, {n_false} false alarms; {n_ran} of {len(fit)} others run, {results}"
    )


def short(text: str) -> str:
    """Return a text on one line, cut."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON else f"{line[:MAX_REASON]} …"


def main(argv: Sequence[str] | None = None) -> None:
    items = {name: Item(trial.title, try_entries, 40) for name, trial in TRIALS.items()}
    unfit = ItemList(
        script=Path(__file__).resolve(),
        title="Foretold, and tried",
        items=items,
        turns=[list(items)],
        minutes=0.75,
        replay_device="NVIDIA H200",
        table=table,
    )
    unfit.main(__doc__, argv)


if __name__ == "__main__":
    main()
