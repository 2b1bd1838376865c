"""``foretune export``: a Python function that chooses configurations, without Foretune."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.cli.run_files import read_files, select_rows
from foretune.cli.store import open_tuned
from foretune.errors import UsageError
from foretune.objective import Objective
from foretune.support.files import atomic_write
from foretune.values import counted, percent

if TYPE_CHECKING:
    import pandas as pd

    from foretune.tune.efficiency import EfficiencyTable, Score
    from foretune.tune.exported_function import ExportedFunction


def export(
    context: typer.Context,
    files: list[Path] = typer.Argument(None, help="Run tables (Parquet). Default: the store."),
    kernel: str = typer.Option(None, help="Kernel, if there are several."),
    device: str = typer.Option(None, help="Device, if there are several."),
    out: Path | None = typer.Option(None, help="Python file to write."),
    optuna: str | None = typer.Option(
        None, help="Write Optuna studies instead: sqlite:///study.db."
    ),
    max_configs: int = typer.Option(8, help="Maximum configurations the function uses."),
    objective: str = options.OBJECTIVE,
    group: str = typer.Option(
        "problem", help="Hold out together: problem, or columns (problem.N,…)."
    ),
) -> None:
    """Write choices as a Python function, or runs for Optuna.

    The function maps a problem to a configuration, and does not need Foretune. The command prints
    the share of the best measured performance that it keeps, on the same problems and on held-out
    ones, and compares it with the single best configuration.
    """
    from foretune.tune.efficiency import efficiency_table
    from foretune.tune.exported_function import export_function

    root = options.root_options(context)
    options.require_positive_int(max_configs, "--max-configs")
    parsed_objective = Objective.parse(objective)
    if (out is None) == (optuna is None):
        raise UsageError("give --out FILE.py or --optuna sqlite:///study.db")
    if files and root.store_name is not None:
        raise UsageError("give either run tables or --store")
    runs = (
        select_rows(read_files(files, kernel), "device", device)
        if files
        else _runs_from_store(root.required_store, kernel, device)
    )
    output = Output(root.as_json)
    if out is None:
        from foretune.datasets.importers.optuna_studies import write

        names = write(runs, str(optuna))
        output.say(f"{optuna}: {len(names)} studies; optuna-dashboard {optuna} shows them")
        output.result({"out": optuna, "studies": names})
        return
    shares = efficiency_table(runs, parsed_objective)
    exported = export_function(shares, max_configs, group, root.seed)
    with atomic_write(out) as new:
        new.write_text(exported.source, encoding="utf-8")
    _show(output, shares, exported, out)
    output.result(
        {
            "out": str(out),
            "kernel": shares.kernel,
            "device": shares.device,
            "problems": len(shares.problems),
            "problems_where_nothing_ran": shares.excluded_problems,
            "configs": exported.configs,
            "leaves": exported.leaves,
            "any_of_them": exported.oracle_share,
            "same": {"function": exported.training_score, "single": exported.training_score_single},
            "held_out": {"function": exported.held_out, "single": exported.held_out_single},
        }
    )


def _runs_from_store(store: str | None, kernel: str | None, device: str | None) -> "pd.DataFrame":
    """Return the measurements of the newest code of a kernel; by default, of the only kernel."""
    tuned = open_tuned(store)
    if kernel is None:
        kernels = sorted({subject.kernel for subject in tuned.subjects()})
        if not kernels:
            raise UsageError(f"{tuned.name} holds nothing yet: tune a kernel, or give run tables")
        if len(kernels) > 1:
            raise UsageError(f"{tuned.name} holds {', '.join(kernels)}: name one with --kernel")
        [kernel] = kernels
    runs = tuned.runs(subjects=[tuned.newest_subject(kernel, device)])
    if runs.empty:
        raise UsageError(f"{tuned.name} holds choices of {kernel}, but no measurements")
    return runs


def _show(
    output: Output, shares: "EfficiencyTable", exported: "ExportedFunction", out: Path
) -> None:
    """Print what the function keeps of the best performance, beside one configuration for all."""
    rows = [
        _row("the function", exported.training_score, exported.held_out),
        _row(
            "the single best configuration",
            exported.training_score_single,
            exported.held_out_single,
        ),
    ]
    title = f"{shares.kernel} on {shares.device}: share of the best {shares.objective.value} kept"
    output.table(title, ("", "same problems", "worst of them", "held-out problems"), rows)

    configurations = counted(len(exported.configs), "configuration")
    leaves = counted(exported.leaves, "leaf", "leaves")
    oracle = f"knowing the best of them per problem would keep {percent(exported.oracle_share)}"
    notes = [f"{configurations}, {leaves}; {oracle}"]
    for problems, score in (("same", exported.training_score), ("held-out", exported.held_out)):
        if score is not None and score.unmeasured:
            notes.append(
                f"on {score.unmeasured} of {score.problems} {problems} problems its choice was not "
                f"measured; if it failed there, {percent(score.at_least)} would be kept"
            )
    if shares.excluded_problems:
        notes.append(f"left out: {shares.excluded_problems} problems on which no configuration ran")
    for note in notes:
        output.console.print(note, markup=False)  # wrapped
    output.say(f"function: {out}")


def _row(name: str, same: "Score", held_out: "Score | None") -> list[str]:
    others = percent(held_out.kept) if held_out else "–"
    return [name, percent(same.kept), percent(same.worst), others]
