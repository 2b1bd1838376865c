"""``foretune plan``: formats, parallelism and batch for serving a language model, without a GPU."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from foretune.tune.plan.correction import ServingCorrection

SHOWN = ["formats", "tp", "pp", "dp", "ep", "replicas", "batch", "ttft_ms", "tpot_ms",
         "tokens_per_s_per_gpu", "memory_gib"]  # fmt: skip
HEADINGS = ("formats", "tp", "pp", "dp", "ep", "×", "batch", "TTFT", "TPOT", "tok/s/GPU", "GiB")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(plan)


def plan(
    model: str = typer.Argument(help="Hugging Face id, or a folder with its config.json."),
    system: str = typer.Option(..., help="What to deploy on, like h100_sxm."),
    gpus: int = typer.Option(..., help="How many GPUs."),
    isl: int = typer.Option(..., help="Tokens of a prompt."),
    osl: int = typer.Option(..., help="Tokens of an answer."),
    ttft: float = typer.Option(float("inf"), help="Most milliseconds to the first token."),
    tpot: float = typer.Option(float("inf"), help="Most milliseconds per further token."),
    accuracy: float = typer.Option(0.0, help="Least share of quality that formats keep, 0 … 1."),
    backend: str = typer.Option("vllm", help="vllm, sglang or trtllm."),
    operators: Path = typer.Option(None, help="Folder of measured operators."),
    measured: Path = typer.Option(
        None, help="Measured deployments (Parquet) that correct the formulas and give intervals."
    ),
    top: int = typer.Option(10, help="Rows of the Pareto front that are shown."),
    as_json: bool = options.JSON,
) -> None:
    """Predict every way to serve a model on some GPUs, and show what is worth choosing.

    Times of operators come from --operators, else from the package aiconfigurator-core (extra
    ``llm``), else from rooflines.
    """
    from foretune.tune.plan import Wish, Workload, describe_model, find_system
    from foretune.tune.plan.clocks import OperatorClocks
    from foretune.tune.plan.operator_tables import OperatorTables, default_folders
    from foretune.tune.plan.planner import plan as make_plan

    for name, value in (("--gpus", gpus), ("--isl", isl), ("--osl", osl), ("--top", top)):
        options.at_least_one(value, name)
    if backend not in (known := ("vllm", "sglang", "trtllm")):
        raise UsageError(f"--backend {backend} is none of {', '.join(known)}")
    folders = [operators] if operators else default_folders()
    clocks = OperatorClocks(OperatorTables(folders[0]) if folders else None)
    described, hardware = describe_model(model), find_system(system)
    made = make_plan(
        described, hardware, gpus, Workload(isl, osl), clocks, Wish(ttft, tpot, accuracy), backend,
        correction=_correction(measured, clocks) if measured else None,
    )  # fmt: skip
    output, best, front = Output(as_json), made.best, made.pareto
    output.table(
        f"{described.name} on {gpus} × {hardware.name}, {backend}",
        HEADINGS,
        [_row(row) for _, row in front.head(top).iterrows()],
    )
    output.say("")
    for line in _sentences(best, made.candidates, bool(folders), measured is not None):
        output.say(line)
    for line in made.notes:
        output.say(f"note: {line}")
    output.result(
        {
            "best": _plain(best),
            "pareto": [_plain(row) for _, row in front.iterrows()],
            "candidates": len(made.candidates),
            "notes": list(made.notes),
        }
    )


def _correction(measured: Path, clocks: Any) -> "ServingCorrection":
    from foretune.tune.plan.correction import ServingCorrection
    from foretune.tune.plan.measured_deployments import read_measured_deployments
    from foretune.tune.plan.physics import physics

    read = read_measured_deployments(measured)
    rows = physics(read.deployments, clocks)
    return ServingCorrection().fit(rows, read.measured, read.groups)


def _row(row: "pd.Series[Any]") -> list[str]:
    cells = []
    for name in SHOWN:
        value = row[name]
        cells.append(f"{value:.4g}" if isinstance(value, float) else str(value))
    return cells


def _sentences(
    best: "pd.Series[Any]", candidates: "pd.DataFrame", tables: bool, corrected: bool
) -> list[str]:
    from foretune.tune.plan.planner import LIMITS

    price = best["usd_per_million_tokens"]
    cost = f", {price:.2f} USD per million tokens" if price == price else ""
    degrees = ", ".join(f"{name} {best[name]}" for name in ("tp", "pp", "dp", "ep"))
    lines = [
        f"best: {best['formats']}, {degrees}, {best['replicas']} × {best['batch']} requests",
        f"{best['tokens_per_s_per_gpu']:.0f} tokens/s per GPU{cost}",
        f"it waits most for {LIMITS[best['limited_by']]}",
    ]
    keeping = candidates[candidates["keeps"]]
    rivals = keeping[keeping["formats"] + keeping["tp"].astype(str)
                     != best["formats"] + str(best["tp"])]  # fmt: skip
    if not rivals.empty:
        second = rivals.loc[rivals["tokens_per_s_per_gpu"].idxmax()]
        ahead = best["tokens_per_s_per_gpu"] / second["tokens_per_s_per_gpu"] - 1
        lines.append(f"next: {second['formats']}, tp {second['tp']}: {100 * ahead:.0f} % behind")
    if not tables:
        lines.append("operators are rooflines: no measured tables (pip install 'foretune[llm]')")
    if not corrected:
        lines.append("no intervals: --measured FILE learns them from measured deployments")
    return lines


def _plain(row: "pd.Series[Any]") -> dict[str, Any]:
    return {
        name: None if value != value else getattr(value, "item", lambda v=value: v)()
        for name, value in row.items()
    }
