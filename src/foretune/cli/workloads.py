"""``foretune tune --workload``: all that a program calls, with one budget."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.cli import options
from foretune.cli.campaign import show_results
from foretune.cli.output import Output
from foretune.console import progress_bar
from foretune.errors import UsageError
from foretune.objective import Limit

if TYPE_CHECKING:
    from foretune.tune.store.cache import StoreLocation
    from foretune.tune.workload import Calls

COLUMNS = ("kernel", "problem", "calls")


def tune_calls(
    path: Path,
    kernel: str,
    budget: str,
    seconds: float | None,
    objective: list[str],
    limit: list[str],
    store: "StoreLocation",
    seed: int,
    patience_s: float,
    device: str,
    runner: str,
    ray_address: str | None,
    output: Output,
) -> None:
    """Tune a workload as it was typed, and print what it gained.

    Raises:
        UsageError: the file cannot be read, or what was typed means nothing.
    """
    from foretune.tune.workload import tune_workload

    parsed_budget = options.read_budget(budget) if budget else None
    if parsed_budget == "auto" or len(objective) > 1:
        raise UsageError("a workload has a number as --budget, and one --objective")
    calls = read_calls(path, kernel)
    with (
        options.make_runner(runner, ray_address, calls[0].kernel, device) as active_runner,
        progress_bar() as progress,
    ):
        result = tune_workload(
            calls, active_runner, budget=parsed_budget, seconds=seconds,
            objective=options.read_objective(objective[0]),
            limits=[Limit.parse(text) for text in limit], seed=seed, store=store,
            patience_s=patience_s, progress=progress,
        )  # fmt: skip
    for name in dict.fromkeys(r.kernel for r in result.results):
        show_results(output, [r for r in result.results if r.kernel == name])
    summary = result.to_json()
    output.say(
        f"all calls: {result.default:.4g} by default, {result.best:.4g} now "
        f"({summary['speedup']:.2f}×), after {summary['measurements']} measurements"
    )
    output.result(summary)


def read_calls(path: Path, kernel: str = "") -> "list[Calls]":
    """Return the lines of a workload: columns kernel, problem (M=…,N=…) and calls.

    Args:
        path: a CSV file; a problem with commas is in quotes.
        kernel: of lines that do not name one.

    Raises:
        UsageError: a column is missing, a line names no kernel, or calls are no number above 0.
    """
    from foretune.registry import get_kernel
    from foretune.tune.workload import Calls

    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise UsageError(f"{path} cannot be read: {e}") from e
    needed = [c for c in COLUMNS if c != "kernel" or not kernel]
    if not rows or (missing := [c for c in needed if c not in rows[0]]):
        lacking = ", ".join(missing) if rows else "all lines"
        raise UsageError(f"{path} lacks {lacking}: its columns are {', '.join(COLUMNS)}")
    kernels, calls = {}, []
    for number, row in enumerate(rows, start=2):
        name = row.get("kernel") or kernel
        try:
            call_count = float(row["calls"])
        except (TypeError, ValueError):
            call_count = 0.0
        if not name or not 0 < call_count < float("inf"):
            raise UsageError(f"{path}, line {number}: give a kernel, and calls above 0")
        if name not in kernels:
            kernels[name] = get_kernel(name)
        problem = options.read_problem(kernels[name], row["problem"] or "")
        calls.append(Calls(kernels[name], problem, call_count))
    return calls
