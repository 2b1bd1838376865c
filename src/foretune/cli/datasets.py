"""``foretune datasets``: the measured run tables that come with Foretune, and their cards."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.errors import UsageError

if TYPE_CHECKING:
    from foretune.datasets import DatasetCard


def datasets(
    name: str | None = typer.Argument(None, help="Show the card of this one."),
    out: Path | None = typer.Option(None, help="Write a copy of its table to this file (Parquet)."),
    as_json: bool = options.JSON,
) -> None:
    """List the shipped run tables, or show one."""
    from foretune.datasets import card, load, shipped, write_runs

    output = Output(as_json)
    if name is None:
        if out is not None:
            raise UsageError("--out needs a name: 'foretune datasets' lists them")
        _show_all(output, [card(each) for each in shipped()])
        return
    found = card(name)
    _show(output, found)
    if out is not None:
        write_runs(out, load(name))
        output.say(f"{out}: {found.rows} rows")
    output.result(found)


def _show_all(output: Output, cards: "list[DatasetCard]") -> None:
    rows = [
        [
            c.name,
            c.device,
            c.ended[:10],
            f"{c.rows}",
            ", ".join(c.kernels),
            "provisional" * bool(c.provisional),
        ]
        for c in cards
    ]
    columns = ("name", "device", "measured", "rows", "kernels", "")
    output.table("run tables that come with Foretune", columns, rows)
    output.result({"datasets": cards})


def _show(output: Output, card: "DatasetCard") -> None:
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
    }
    if card.provisional:
        lines["provisional"] = card.provisional
    output.say(card.name)
    for title, text in lines.items():
        output.say(f"  {title}: {text}")
