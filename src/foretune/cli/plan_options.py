"""Arguments and options that all plans share, and their parsing."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.errors import UsageError, require_known
from foretune.support.console import progress_bar

if TYPE_CHECKING:
    from foretune.plan import Requirements
    from foretune.plan.cost.steps import StepTimerFactory
    from foretune.plan.cost.tables import OperatorTables

LIMITS = {
    "ttft": "ttft_ms",
    "tpot": "tpot_ms",
    "accuracy": "accuracy",
    "power": "power_w",
    "memory": "memory_gib",
    "cost": "usd_per_million_tokens",
}
"""Key of ``--limit`` -> attribute of `Requirements`."""

MODEL = typer.Argument(help="Hugging Face id, or a folder with its config.json.")
BACKEND = typer.Option("vllm", help="Engine: vllm, sglang or trtllm.")
OPERATORS = typer.Option(
    None, help="Folder of operators measured by 'foretune collect --operators'; used first."
)
PRICES = typer.Option(None, help="CSV of your prices: system,usd_per_gpu_hour.")
TOP = typer.Option(10, help="Rows to show.")
TTFT = typer.Option(None, help="Maximum milliseconds to the first token: --limit ttft=MS.")
TPOT = typer.Option(None, help="Maximum milliseconds per further token: --limit tpot=MS.")
LIMIT = typer.Option(
    [],
    help="ttft=MS, tpot=MS, power=W (per GPU), memory=GIB (per GPU), cost=USD (per million "
    "tokens), or accuracy=0.99 (minimum share of quality that formats keep). Repeatable.",
)


def parse_limits(
    texts: Sequence[str],
    ttft: float | None = None,
    tpot: float | None = None,
    goal: str = "throughput",
    known: Sequence[str] = tuple(LIMITS),
) -> "Requirements":
    """Return the requirements of ``--limit``, whose keys are ``known``, and its shorthands."""
    from foretune.plan import Requirements

    given = dict(options.parse_numbers(texts, "--limit", known))
    for key, value in (("ttft", ttft), ("tpot", tpot)):
        if value is not None:
            if key in given:
                raise UsageError(f"--{key} and --limit {key} are the same: give one of them")
            given[key] = value
    kinds: dict[str, Any] = {LIMITS[key]: value for key, value in given.items()}
    return Requirements(**kinds, goal=goal)  # type: ignore[arg-type]


def check_engine(backend: str) -> None:
    """Raise UnknownName if plans do not know the engine."""
    from foretune.plan.describe.engines import ENGINES

    require_known("engine", backend, ENGINES)


def read_prices(path: Path | None) -> dict[str, float]:
    """Return USD per GPU and hour by system: the user's file, else the published prices."""
    from foretune.plan import published_prices
    from foretune.plan import read_prices as read

    return read(path) if path else published_prices()


def load_timers(folder: Path | None) -> "tuple[StepTimerFactory, OperatorTables | None]":
    """Return the timers of operators and their tables: the user's, else the installed ones."""
    from foretune.plan.cost.operator_predictor import TrainedPredictorCache
    from foretune.plan.cost.steps import StepTimerFactory
    from foretune.plan.cost.tables import find_tables

    tables = find_tables(folder)
    return StepTimerFactory(tables, TrainedPredictorCache(progress_bar)), tables
