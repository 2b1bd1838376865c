"""``foretune import``: other tools' results, or the shipped tables, as run tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.cli.csv_files import split_constants, text_dialect
from foretune.cli.output import Output
from foretune.errors import UsageError, require_known
from foretune.support.console import progress_bar

if TYPE_CHECKING:
    import pandas as pd

    from foretune.datasets.catalog import DatasetCard


DATE_CHARACTERS = len("2026-01-31")


def import_(
    context: typer.Context,
    files: list[str] = typer.Argument(
        None, help="Files or folders; for aiconfigurator also 'installed' or a system, h200_sxm."
    ),
    format: str = typer.Option("", help="Format: aiconfigurator, kerneltuner, generic, …"),
    out: Path | None = typer.Option(None, help="Run table to write (Parquet)."),
    kernel: str = typer.Option(
        "", help="Only this kernel (aiconfigurator, torch-profiler); else that of all rows."
    ),
    device: str = typer.Option("", help="Name of the device, if the files do not name it."),
    map_: list[str] = typer.Option(
        [],
        "--map",
        help="Column: 'time_ms=latency_us*0.001', 'problem.M=m'; with ==, one value for all rows: "
        "'problem.N==64' (repeatable).",
    ),
    separator: str = typer.Option("", help="Separator of text tables; found if left out."),
    decimal: str = typer.Option("", help="Decimal mark of text tables, . or ,; found if left out."),
    shipped: bool = typer.Option(
        False, "--shipped", help="List the run tables that come with Foretune, or show FILES' card."
    ),
) -> None:
    """Turn another tool's results into a run table.

    Impossible rows are left out and counted by reason. With --shipped, --out copies a table that
    comes with Foretune.
    """
    output = Output(options.root_options(context).as_json)
    if shipped:
        unused = ("format", "kernel", "device", "map_", "separator", "decimal")
        options.reject_options(context, unused, "--shipped does not take")
        _import_shipped(output, files or [], out)
        return
    if not files or not format or out is None:
        given = {"FILES": files, "--format": format, "--out": out}
        missing = ", ".join(name for name, value in given.items() if not value)
        raise UsageError(f"give {missing} too; --shipped lists Foretune's own tables")
    _import_files(context, output, files, format=format, out=out)


def _import_files(
    context: typer.Context, output: Output, files: list[str], *, format: str, out: Path
) -> None:
    """Import files, write the run table, and say what was left out."""
    from foretune.datasets.importers import FORMATS, import_runs
    from foretune.datasets.runs import write_runs

    given = context.params
    dialect = text_dialect(given["separator"], given["decimal"])
    require_known("format", format, FORMATS)
    if any(_is_read(Path(file), out, FORMATS[format].suffixes) for file in files):
        raise UsageError(f"{out} is an input file: give another --out")
    sources_and_constants = options.parse_key_values(given["map_"], "--map")
    constants, sources = split_constants(sources_and_constants)
    with progress_bar() as progress:
        imported = import_runs(
            files,
            format,
            kernel=given["kernel"] or None,
            device=given["device"] or None,
            mapping=sources,
            constants=constants,
            separator=dialect.separator,
            decimal=dialect.decimal,
            progress=progress,
        )
    n_rows = len(imported.runs)
    n_rejected = sum(imported.rejected.values())
    if not n_rows:
        reasons = "; ".join(imported.rejected) or "; ".join(imported.skipped.values())
        raise UsageError(f"nothing was imported: {reasons}")
    _require_nothing_lost(out, imported.runs)
    write_runs(out, imported.runs)

    for reason in imported.skipped.values():
        output.say(f"skipped: {reason}")
    for note in imported.notes:
        output.say(note)
    output.say(f"{out}: {n_rows} rows, {n_rejected} rejected")
    for reason, count in imported.rejected.items():
        output.say(f"  {count} rejected: {reason}")
    rows_of_kernels = [(kernel, str(count)) for kernel, count in imported.kernels.items()]
    output.table("", ("kernel", "rows"), rows_of_kernels)

    results: dict[str, Any] = {
        "rows": n_rows,
        "rejected": n_rejected,
        "reasons": imported.rejected,
        "out": str(out),
        "kernels": imported.kernels,
        "skipped": list(imported.skipped),
    }
    if imported.notes:
        results["notes"] = list(imported.notes)
    if format == "torch-profiler":
        results |= _show_launches(output, imported.runs)
    output.result(results)


def _is_read(source: Path, out: Path, suffixes: tuple[str, ...]) -> bool:
    """Return whether an import of ``source``, a file or a folder, reads ``out`` too."""
    if source.resolve() == out.resolve():
        return True
    is_inside = source.resolve() in out.resolve().parents
    return is_inside and out.exists() and out.name.lower().endswith(suffixes)


def _require_nothing_lost(out: Path, runs: "pd.DataFrame") -> None:
    """Raise UsageError if ``out`` is a run table with others than these ``runs``."""
    from foretune.datasets.runs import read_runs
    from foretune.models.repeats import count_missing_runs

    if not out.exists():
        return
    before = read_runs(out)
    n_lost = max(count_missing_runs(runs, before), len(before) - len(runs))
    if n_lost > 0:
        raise UsageError(
            f"{out} holds {n_lost:,} runs that are not among these: give another --out"
        )


def _show_launches(output: Output, runs: "pd.DataFrame") -> dict[str, Any]:
    """Show launch and queueing time by batch size, and where it begins to rise."""
    from foretune.datasets.importers.torch_profiler import first_compute_bound, launch_summary

    summary = launch_summary(runs)
    if summary.empty:
        return {}
    rows = [
        [
            f"{row.batch}",
            f"{row.kernels}",
            f"{row.tklqt_ms:.3g}",
            f"{row.launch_us:.3g}",
            f"{row.kernel_ms:.3g}",
        ]
        for row in summary.itertuples()
    ]
    title = "launch and queueing time (TKLQT, arXiv 2504.11750)"
    output.table(title, ("batch", "kernels", "TKLQT ms", "µs each", "kernels ms"), rows)

    batch = first_compute_bound(summary)
    if len(summary) < 2:
        finding = "import traces of several batch sizes to see where launches stop being the limit"
    elif batch is None:
        finding = f"launch-bound up to batch {summary['batch'].max()}, the largest"
    else:
        finding = f"launch-bound below batch {batch}; from there on, kernels wait in the queue"
    output.say(finding)
    return {"launches": summary.to_dict("records"), "compute_bound_from": batch}


def _import_shipped(output: Output, names: list[str], out: Path | None) -> None:
    """List the tables that come with Foretune, or show one's card and copy it."""
    from foretune.datasets.catalog import card, load, shipped
    from foretune.datasets.runs import write_runs

    if not names:
        if out is not None:
            raise UsageError("--out needs a name: 'foretune import --shipped' lists them")
        _list_cards(output, [card(name) for name in shipped()])
        return
    if len(names) > 1:
        raise UsageError(f"--shipped takes one table at a time, not {', '.join(names)}")
    shown_card = card(names[0])
    _show_card(output, shown_card)
    if out is not None:
        runs = load(names[0])
        _require_nothing_lost(out, runs)
        write_runs(out, runs)
        output.say(f"{out}: {shown_card.rows} rows")
    output.result(shown_card)


def _list_cards(output: Output, cards: "list[DatasetCard]") -> None:
    rows = []
    for card in cards:
        measured = card.ended[:DATE_CHARACTERS]
        if card.provisional:
            measured += " provisional"
        kernels = ", ".join(card.kernels)
        rows.append([card.name, card.device, measured, f"{card.rows}", kernels])
    columns = ("name", "device", "measured", "rows", "kernels")
    output.table("run tables that come with Foretune", columns, rows)
    output.result({"datasets": cards})


def _show_card(output: Output, card: "DatasetCard") -> None:
    specs = ", ".join(f"{name} {value:,.6g}" for name, value in card.specs.items())
    kernels = ", ".join(f"{name} ({source})" for name, source in card.kernels.items())
    lines = {
        "device": f"{card.device} ({card.architecture}): {specs}",
        "system": card.system,
        "measured": f"{card.began} to {card.ended}",
        "rows": f"{card.rows}",
        "kernels": kernels,
        "columns": ", ".join(card.columns),
        "protocol": card.protocol,
        "command": card.command,
        "licence": card.licence,
        "provisional": card.provisional,
    }
    output.say(card.name)
    for title, text in lines.items():
        if text:
            output.say(f"  {title}: {text}")
