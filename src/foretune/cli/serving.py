"""``foretune plan`` for serving: asks the planner, and shows what it found and what was checked."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.cli.output import Output, progress_bar

if TYPE_CHECKING:
    import pandas as pd

    from foretune.plan import Formats, Plan, System, Wish
    from foretune.plan.cost.clocks import OperatorClocks
    from foretune.plan.cost.tables import OperatorTables
    from foretune.plan.serve.report import Question

COLUMNS = {
    "system": "system", "formats": "formats", "tp": "tp", "pp": "pp", "dp": "dp", "ep": "ep",
    "replicas": "×", "prefill": "prompts on", "workers": "workers", "batch": "batch",
    "ttft_ms": "TTFT", "tpot_ms": "TPOT", "tokens_per_s_per_gpu": "tok/s/GPU",
    "memory_gib": "GiB", "usd_per_million_tokens": "USD/M",
}  # fmt: skip
"""Column of candidates -> its heading; what is the same in all rows is left out."""
ALWAYS = ("formats", "batch", "ttft_ms", "tpot_ms", "tokens_per_s_per_gpu")
WIDE = 9
"""Columns that 80 characters hold."""


@dataclass(frozen=True)
class Request:
    """What was typed, beside the wish.

    Attributes:
        model, system, gpus, isl, osl, rate, pools, formats, backend: the command's options.
        operators, measured, prices, qualities: names of files that it reads.
    """

    model: str
    system: str
    gpus: int
    isl: int
    osl: int
    rate: float | None
    pools: bool
    formats: str
    backend: str
    operators: Path | None
    measured: str | None
    prices: Path | None
    qualities: Path | None


@dataclass(frozen=True)
class Answer:
    """What the planner found.

    Attributes:
        plan: all candidates.
        question: what was asked.
        clocks, tables: what operators' times came from.
        commands: that start the best, by engine.
    """

    plan: "Plan"
    question: "Question"
    clocks: "OperatorClocks"
    tables: "OperatorTables | None"
    commands: dict[str, str]


def answer(request: Request, wish: "Wish", output: Output) -> Answer:
    """Return what the planner finds.

    Raises:
        ForetuneError: of many kinds; nothing fits, or keeps to the wish, or a name is unknown.
    """
    from foretune.plan import Workload, describe_model, plan, read_accuracy
    from foretune.plan.cost.clocks import OperatorClocks
    from foretune.plan.cost.kept_predictors import KeptPredictors
    from foretune.plan.cost.tables import find_tables
    from foretune.plan.serve.deployments.learned import learned_from
    from foretune.plan.serve.launching import launch_commands
    from foretune.plan.serve.report import Question

    model, systems = describe_model(request.model), _systems(request.system, request.prices)
    load = Workload(request.isl, request.osl)
    tables = find_tables(request.operators)
    predictors = KeptPredictors(progress_bar)
    clocks = OperatorClocks(tables, predictors)
    correction = None
    if request.measured:
        correction = learned_from(request.measured, output.say, predictors)
    start = time.perf_counter()
    found = plan(
        model, systems, request.gpus, load, clocks, wish, request.backend,
        formats=_formats(request.formats), correction=correction, rate=request.rate,
        pools=request.pools,
        accuracy=read_accuracy(request.qualities) if request.qualities else None,
    )  # fmt: skip
    question = Question(
        model, tuple(systems), request.gpus, load, request.backend, request.rate, request.pools,
        tables is not None, correction is not None, time.perf_counter() - start,
    )  # fmt: skip
    best = found.best
    commands = launch_commands(found.deployment(best), int(best["replicas"]))
    return Answer(found, question, clocks, tables, commands)


def show(output: Output, answer: Answer, top: int) -> None:
    """Print the front, what it means, and how to start the best."""
    from foretune.plan.serve.explaining import notes, sentences
    from foretune.plan.serve.planner import GUESSWORK

    plan, question = answer.plan, answer.question
    shown = _spread(plan, top)
    guesses = bool((shown["guessed"] > GUESSWORK).any())
    columns = [c for c in COLUMNS if c in ALWAYS or shown[c].nunique() > 1][: WIDE - guesses]
    headings = [COLUMNS[c] for c in columns]
    rows = [[_cell(name, row) for name in columns] for _, row in shown.iterrows()]
    output.table(str(question), headings, rows)
    if guesses:
        output.say("? more than half of it lies outside what was measured")
    output.say("")
    for line in sentences(plan):
        output.say(line)
    for line in notes(plan, question.tables, question.corrected):
        output.say(f"note: {line}")
    output.say(
        f"{len(plan.candidates)} candidates in {question.seconds:.1f} s; start the best with"
    )
    for command in answer.commands.values():
        output.say(f"\n{command}")


def verify(output: Output, answer: Answer) -> "tuple[pd.DataFrame, dict[str, Any]]":
    """Measure what this machine can of a plan, and show it.

    Returns:
        Operators as a table, and all results as plain values.
    """
    from foretune.cli.verifying_plan import show_operators, verify_parallel
    from foretune.collect import local_device
    from foretune.collect.nvidia import local_gpus
    from foretune.plan.check.operators import (
        local_clock,
        request_operators,
        verify_operators,
    )

    plan, question = answer.plan, answer.question
    rivals = [row for row in (plan.best, plan.runner_up) if row is not None]
    deployments = [plan.deployment(row) for row in rivals]
    device = local_device("cuda" if local_gpus() else "cpu")
    clock = local_clock(device, answer.tables, question.backend)
    check = verify_operators(request_operators(deployments), clock, planned=deployments[0].system)
    show_operators(output, check)
    return check.table, {"operators": check.to_json(), "parallel": verify_parallel(output)}


def _systems(text: str, prices: Path | None) -> "list[System]":
    """Return the systems meant, at the user's prices."""
    from foretune.plan import known_systems, published_prices, read_prices
    from foretune.plan.describe.local_system import planned_system

    names = known_systems() if text == "all" else [name.strip() for name in text.split(",")]
    own = read_prices(prices) if prices else {}
    for name in own:
        planned_system(name)  # a misspelt one would be nobody's price
    known = published_prices() | own
    return [planned_system(name, known) for name in dict.fromkeys(names)]


def _formats(text: str) -> "list[Formats] | None":
    from foretune.plan import Formats

    if not text:
        return None
    parts = [part.strip().partition("/") for part in text.split(",")]
    return [Formats(weights, kv=cache or "bf16") for weights, _, cache in parts]


def _spread(plan: "Plan", top: int) -> "pd.DataFrame":
    """Return ``top`` rows of the front, spread over it, the best among them, fastest first."""
    import numpy as np

    front, best = plan.pareto, plan.best
    others = front.drop(index=best.name, errors="ignore")
    places = np.linspace(0, len(others) - 1, min(top - 1, len(others))).round().astype(int)
    names = {*others.index[places], best.name}
    return plan.candidates.loc[list(names)].sort_values("tpot_ms")


def _cell(name: str, row: "pd.Series[Any]") -> str:
    from foretune.plan.serve.explaining import number
    from foretune.plan.serve.planner import GUESSWORK

    value = row[name]
    if name in ("formats", "prefill"):
        short = str(value).replace(", ", "/").removesuffix(" cache").replace(" × ", "×")
        return f"{short} ?" if name == "formats" and row["guessed"] > GUESSWORK else short
    return number(value) if isinstance(value, float) else str(value)
