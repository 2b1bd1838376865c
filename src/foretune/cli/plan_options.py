"""Arguments and options that all plans share, and what they name."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.console import progress_bar
from foretune.errors import UnknownName

if TYPE_CHECKING:
    from foretune.plan.cost.clocks import StepTimerFactory
    from foretune.plan.cost.tables import OperatorTables
    from foretune.plan.engine.requests import Requests

NO_LIMIT = float("inf")
LIMITS_PANEL = "Limits (default: none)"
"""Heading of the help's part about limits."""

MODEL = typer.Argument(help="Hugging Face id, or a folder with its config.json.")
SYSTEM = typer.Option(..., help="Kind of GPU, like h100_sxm.")
ISL = typer.Option(..., help="Input tokens per request.")
OSL = typer.Option(..., help="Output tokens per request.")
BACKEND = typer.Option("vllm", help="Engine: vllm, sglang or trtllm.")
OPERATORS = typer.Option(
    None, help="Folder of operators measured by 'foretune collect llm-ops'; used first."
)
PRICES = typer.Option(None, help="CSV of your prices: system,usd_per_gpu_hour.")
TOP = typer.Option(10, help="Rows to show.")


def limit_option(text: str) -> Any:
    """Return the option of an upper limit, which is none by default."""
    return typer.Option(NO_LIMIT, help=text, show_default=False, rich_help_panel=LIMITS_PANEL)


TTFT = limit_option("Most milliseconds to the first token.")
TPOT = limit_option("Most milliseconds per further token.")
ACCURACY = typer.Option(
    0.0, help="Least share of quality that number formats keep, 0 … 1.", show_default=False,
    rich_help_panel=LIMITS_PANEL,
)  # fmt: skip


def check_engine(backend: str) -> None:
    """Check ``--backend``.

    Raises:
        UnknownName: plans know no such engine.
    """
    from foretune.plan.serve.deployments.deployment import ENGINES

    if backend not in ENGINES:
        raise UnknownName("engine", backend, ENGINES)


def read_prices(path: Path | None) -> dict[str, float]:
    """Return the prices in a file, USD per GPU and hour by system; the published ones for None.

    Raises:
        RunTableError: the file cannot be read, or a price is none.
    """
    from foretune.plan import published_prices
    from foretune.plan import read_prices as read

    return read(path) if path else published_prices()


def load_trace(path: Path | None) -> "Requests | None":
    """Return the requests of ``--trace``; None without it.

    Raises:
        RunTableError: the file cannot be read.
    """
    from foretune.plan.engine.requests import read_trace

    return read_trace(path) if path else None


def load_operator_clocks(folder: Path | None) -> "tuple[StepTimerFactory, OperatorTables | None]":
    """Return clocks of measured operators, and the tables behind them; None leaves rooflines.

    Args:
        folder: of the user's operators; None takes the installed tables.

    Raises:
        UsageError: there are none in ``folder``.
    """
    from foretune.plan.cost.clocks import StepTimerFactory
    from foretune.plan.cost.tables import find_tables
    from foretune.plan.cost.trained_cache import TrainedPredictorCache

    tables = find_tables(folder)
    return StepTimerFactory(tables, TrainedPredictorCache(progress_bar)), tables
