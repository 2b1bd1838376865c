"""``foretune plan serve``: number formats, parallelism and batch size for serving a model."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from foretune.cli import options, plan_options
from foretune.cli.carbon import CARBON, check_carbon, show_carbon
from foretune.cli.output import Output
from foretune.errors import UsageError
from foretune.support.files import translate_write_errors

if TYPE_CHECKING:
    import pandas as pd

    from foretune.plan import Formats, Plan, Speculation, System
    from foretune.plan.cost.steps import StepTimerFactory
    from foretune.plan.serve.deployments.correction import Calibration, LatencyPredictor
    from foretune.plan.serve.deployments.deployment import Deployment
    from foretune.plan.serve.report import Question
    from foretune.plan.serve.simulation import SimulationResult

COLUMNS = {
    "system": "system",
    "formats": "formats",
    "layout": "layout",
    "replicas": "×",
    "prefill": "prompts on",
    "workers": "workers",
    "batch": "batch",
    "tokens_per_s_per_gpu": "tok/s/GPU",
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "usd_per_million_tokens": "USD/M",
    "offload_gib": "in host",
    "memory_gib": "GiB",
}
"""Column of candidates -> its heading; a column with one value only is left out."""
REQUIRED_COLUMNS = (
    "formats",
    "layout",
    "batch",
    "tokens_per_s_per_gpu",
    "ttft_ms",
    "tpot_ms",
    "usd_per_million_tokens",
)
"""Columns that are always shown."""
DROPPABLE_COLUMNS = ("memory_gib", "workers", "replicas", "prefill", "system")
"""Columns left out, in this order, until lines fit `MAX_WIDTH`."""
MAX_WIDTH = 80
SEPARATOR_WIDTH = 2  # characters between columns
RESULTS_PANEL = "Results"
SYSTEM = typer.Option(
    None, help="h100_sxm; several, joined by commas; local (this machine); or all (slow)."
)
GOAL = typer.Option("throughput", "--for", help="Goal: throughput, cost, energy or latency.")
RATE = typer.Option(None, help="Requests per second (Poisson arrivals); finds the fewest GPUs.")
TRACE = typer.Option(
    None, help="CSV or Parquet of requests to replay: at_s, isl, osl, optionally cached."
)
SPECULATIVE = typer.Option(
    "",
    help="TOKENS:ACCEPTANCE[:MODEL], like 3:0.7: draft 3 tokens per step with the model's own "
    "layers or a smaller model. ACCEPTANCE: probability per token if all before were accepted.",
    show_default=False,
)
FORMATS = typer.Option(
    "",
    help="Only these formats of weights, of the cache, or of both: fp8, /nvfp4, nvfp4/fp8, "
    "joined by commas. Caches: bf16, fp8, nvfp4, int4_head (vLLM), fp4_e2m1 (SGLang).",
    show_default=False,
)
OFFLOAD = typer.Option(
    [],
    help="Maximum GiB of weights per GPU in host memory (vllm, sglang); cache=GIB: host "
    "memory per GPU for the cache of --prefix (repeatable).",
)
MEASURED = typer.Option(
    None, help="Measured deployments that correct the formulas: a table, or 'published'."
)
CALIBRATE = typer.Option(
    None,
    help="Results of vllm bench serve or sglang.bench_serving (JSON) of this model on your "
    "own GPUs, 3 to 10, to correct the plan. Record the layout: --metadata tp=4.",
)
QUALITIES = typer.Option(
    None,
    help="CSV of measured qualities to use instead of the published ones: format (kv:fp8 "
    "for a cache), method, model, benchmark, baseline, quantized, better (higher or lower), "
    "source.",
)
OUT = typer.Option(
    None,
    help="Save report, table and JSON in a new folder in this one; MLflow tracks it.",
    rich_help_panel=RESULTS_PANEL,
)
KUBERNETES = typer.Option(
    None,
    help="Write a manifest that starts the best plan with --backend: kubectl apply -f FILE.",
    rich_help_panel=RESULTS_PANEL,
)


def serve(
    context: typer.Context,
    model: str = plan_options.MODEL,
    system: str = SYSTEM,
    gpus: int = typer.Option(None, help="Number of GPUs."),
    isl: int = typer.Option(None, help="Input tokens per request."),
    osl: int = typer.Option(None, help="Output tokens per request."),
    prefix: int = typer.Option(0, help="Input tokens that are already in the prefix cache."),
    goal: str = GOAL,
    rate: float | None = RATE,
    trace: Path = TRACE,
    pools: bool = typer.Option(False, "--pools", help="Also try separate prefill workers."),
    speculative: str = SPECULATIVE,
    formats: str = FORMATS,
    offload: list[str] = OFFLOAD,
    backend: str = plan_options.BACKEND,
    operators: Path = plan_options.OPERATORS,
    measured: str = MEASURED,
    calibrate: Path = CALIBRATE,
    prices: Path = plan_options.PRICES,
    qualities: Path = QUALITIES,
    ttft: float | None = plan_options.TTFT,
    tpot: float | None = plan_options.TPOT,
    limit: list[str] = plan_options.LIMIT,
    out: Path = OUT,
    kubernetes: Path = KUBERNETES,
    top: int = plan_options.TOP,
    carbon: float | None = CARBON,
) -> None:
    """Predict every way to serve a model on the given GPUs, and show the Pareto front.

    Operator times come from --operators, else from the package aiconfigurator-core (extra 'llm'),
    else from rooflines.
    """
    from foretune.plan.engine.simulator import read_trace

    requests, longest = read_trace(trace) if trace else None, 0
    if requests is not None:
        isl, osl = isl or round(requests.isl.mean()), osl or round(requests.osl.mean())
        longest = int((requests.isl + requests.osl).max())
        prefix = prefix or int(min(requests.cached.mean(), isl - 1))
    _check_required(
        model, {"--system": system, "--gpus": gpus, "--isl": isl, "--osl": osl, "--top": top}
    )
    if rate is not None and not 0 < rate < float("inf"):
        raise UsageError(f"--rate {rate:g}: give requests per second, more than 0")
    if pools and kubernetes:
        raise UsageError("a manifest is written for one pool: leave --pools out")
    check_carbon(carbon)
    plan_options.check_engine(backend)
    requirements = plan_options.parse_limits(limit, ttft, tpot, goal)
    from foretune.plan import Workload, describe_model, plan, read_accuracy
    from foretune.plan.cost.measured_operators import describe_rejected
    from foretune.plan.describe.layout import Offload
    from foretune.plan.serve.deployments.correction import fit_or_load_correction
    from foretune.plan.serve.launching import launch_commands
    from foretune.plan.serve.report import Question
    from foretune.plan.serve.saving import plan_to_json, save_plan
    from foretune.plan.serve.simulation import choose_step_tokens, simulate

    output = Output(options.root_options(context).as_json)
    clocks, tables = plan_options.load_operator_clocks(operators)
    named = [text if "=" in text else f"weights={text}" for text in offload]
    host_gib = options.parse_numbers(named, "--offload", ("weights", "cache"))
    question = Question(
        describe_model(model),
        tuple(_parse_systems(system, prices)),
        gpus,
        Workload(isl, osl, prefix),
        backend,
        rate,
        pools,
        tables is not None,
        measured is not None,
        offload=Offload(host_gib.get("weights", 0.0), host_gib.get("cache", 0.0)),
    )
    chosen, caches = _parse_formats(formats, question.systems)
    correction = (
        fit_or_load_correction(measured, output.say, clocks.predictors) if measured else None
    )
    stack = _calibration(calibrate, question, clocks, correction) if calibrate else None
    start = time.perf_counter()
    found = plan(
        question.model,
        question.systems,
        gpus,
        question.workload,
        clocks,
        requirements,
        backend,
        formats=chosen,
        caches=caches,
        correction=correction,
        rate=rate,
        pools=pools,
        accuracy=read_accuracy(qualities) if qualities else None,
        speculation=_parse_speculation(speculative),
        offload=question.offload,
        calibration=stack,
    )
    if longest:
        lengths = [replace(d, max_request_tokens=longest) for d in found.deployments]
        found = replace(found, deployments=lengths)
    question = replace(question, seconds=time.perf_counter() - start)
    best, replay = found.deployment(found.best), None
    if best.pools is None or rate is not None or requests is not None:
        corrected_tpot_ms = (
            float(found.best["tpot_ms"]) if (measured or stack) and rate is None else None
        )
        best, replay = choose_step_tokens(
            best,
            requirements,
            lambda deployment: simulate(
                deployment, int(found.best["replicas"]), clocks, rate, requests, corrected_tpot_ms
            ),
        )
    commands = launch_commands(best, int(found.best["replicas"]))
    _show(output, found, question, commands, top, replay, describe_rejected(clocks.rejected_rows))
    results: dict[str, Any] = {"screened": [one._asdict() for one in clocks.rejected_rows]}
    energy = {"best": float(found.best["energy_mj_per_token"])}
    results |= show_carbon(output, carbon, energy, "tokens")
    if replay is not None:
        results["replayed"] = replay.to_json()
    try:
        _write_manifest(output, kubernetes, best, backend, int(found.best["replicas"]))
    finally:  # a plan is kept even if the file cannot be written
        if out is not None:
            kept = save_plan(found, question, clocks, out, None, commands)
            results |= {"report": str(kept.report), "mlflow_run_id": kept.run_id}
            output.say(f"report   {kept.report}")
            output.say(f"MLflow   {kept.tracked_at}")
        output.result(plan_to_json(found, question, commands) | results)


def _calibration(
    path: Path,
    question: "Question",
    clocks: "StepTimerFactory",
    correction: "LatencyPredictor | None",
) -> "Calibration":
    from foretune.plan.serve.deployments.correction import read_calibration

    if len(question.systems) > 1:
        raise UsageError(f"--calibrate {path} is for one system: give only that --system")
    return read_calibration(
        path, question.model, question.systems[0], question.backend, clocks, correction
    )


def _write_manifest(
    output: Output, path: Path | None, best: "Deployment", engine: str, replicas: int
) -> None:
    """Write the best deployment's Kubernetes manifest to ``path``, if one is given."""
    from foretune.plan.serve.launching import checkpoint
    from foretune.plan.serve.saving import manifest

    if path is None:
        return
    with translate_write_errors(path):
        path.write_text(manifest(best, engine, replicas), encoding="utf-8")
    served = checkpoint(best, engine)[0]
    missing = served.startswith("CHECKPOINT_IN") or Path(served).exists()
    first = f"replace {served} with a checkpoint that pods can load, then " if missing else ""
    output.say(f"\nor on Kubernetes: {first}kubectl apply -f {path}")


EXAMPLE_OPTIONS = {"--system": "h100_sxm", "--gpus": 8, "--isl": 2048, "--osl": 256}


def _check_required(model: str, needed: "dict[str, Any]") -> None:
    """Raise UsageError if a value is missing, or a number below 1."""
    missing = ", ".join(name for name, value in needed.items() if value is None)
    if missing:
        values = {name: needed[name] or value for name, value in EXAMPLE_OPTIONS.items()}
        example = " ".join(f"{name} {value}" for name, value in values.items())
        raise UsageError(f"give {missing} too: foretune plan serve {model} {example}")
    for name, value in needed.items():
        if isinstance(value, int):
            options.require_positive_int(value, name)


def _show(
    output: Output,
    plan: "Plan",
    question: "Question",
    commands: dict[str, str],
    top: int,
    replay: "SimulationResult | None",
    left_out: str,
) -> None:
    """Print the Pareto front, its explanation, and the commands that start the best deployment."""
    from foretune.plan.serve.explanation import notes, sentences
    from foretune.plan.serve.planner import MAX_EXTRAPOLATED_SHARE, describe_layout

    shown = _select_rows(plan, top)
    guesses = bool((shown["guessed"] > MAX_EXTRAPOLATED_SHARE).any())
    shown = shown.assign(layout=[describe_layout(row) for _, row in shown.iterrows()])
    cells = {
        name: [COLUMNS[name], *(_cell(name, row) for _, row in shown.iterrows())]
        for name in COLUMNS
        if (name in REQUIRED_COLUMNS or shown[name].nunique() > 1) and shown[name].notna().any()
    }
    for name in DROPPABLE_COLUMNS:
        widths = [max(map(len, column)) for column in cells.values()]
        if sum(widths) + SEPARATOR_WIDTH * (len(widths) - 1) > MAX_WIDTH:
            cells.pop(name, None)
    headings, *rows = zip(*cells.values(), strict=True)
    if not question.tables:
        output.say("operator times are rooflines, none is measured: pip install '.[llm]'")
    output.table(str(question), headings, rows)
    if guesses:
        output.say("? more than half of its time is extrapolated")
    output.say("")
    for line in sentences(plan):
        output.say(line)
    caveats = notes(plan, question.tables, question.corrected)
    if replay is not None:
        output.say(str(replay))
        caveats = [*replay.differences(plan.best.to_dict(), question.rate), *caveats]
    for line in caveats:
        output.say(f"note: {line}")
    if left_out:
        output.say(left_out)
    output.say(
        f"{len(plan.candidates)} candidates in {question.seconds:.1f} s; start the best with"
    )
    for command in commands.values():
        output.say(f"\n{command}")


def _parse_speculation(text: str) -> "Speculation | None":
    """Parse ``--speculative``: TOKENS:ACCEPTANCE[:MODEL]."""
    from foretune.plan import Speculation, describe_model

    if not text:
        return None
    drafted, _, rest = text.partition(":")
    acceptance, _, draft = rest.partition(":")
    try:
        count, share = int(drafted), float(acceptance)
    except ValueError:
        raise UsageError(
            f"--speculative {text}: write TOKENS:ACCEPTANCE[:MODEL], like 3:0.7"
        ) from None
    return Speculation(count, share, describe_model(draft) if draft else None)


def _parse_systems(text: str, prices: Path | None) -> "list[System]":
    from foretune.plan import known_systems, published_prices, read_prices
    from foretune.plan.describe.catalog import resolve_system

    names = known_systems() if text == "all" else [name.strip() for name in text.split(",")]
    known = published_prices() | (read_prices(prices) if prices else {})
    return [resolve_system(name, known) for name in dict.fromkeys(names)]


def _parse_formats(
    text: str, systems: "Sequence[System]"
) -> "tuple[list[Formats] | None, list[str]]":
    """Parse ``--formats`` into formats of deployments (None: all weights) and of caches.

    ``/fp8`` alone is a cache for all weights without their own; `_default_caches` if there is none.
    """
    from foretune.plan import Formats
    from foretune.plan.describe.formats import find_format

    parts = [part.strip().partition("/") for part in text.split(",")] if text else []
    caches = [find_format(cache, cache=True).name for weights, _, cache in parts if not weights]
    named = [(weights, cache) for weights, _, cache in parts if weights]
    if not named:
        return None, caches
    if caches and all(cache for _, cache in named):
        raise UsageError(f"--formats {text}: all weights have a cache, so leave /{caches[0]} out")
    usual = caches or _default_caches(systems)
    return [
        Formats(weights, kv=each)
        for weights, cache in named
        for each in ([cache] if cache else usual)
    ], caches


def _default_caches(systems: "Sequence[System]") -> list[str]:
    """Return the default cache formats that all GPUs support; 16 bits are always included."""
    from foretune.plan.describe.formats import DEFAULT_CACHE_FORMATS, supported

    first, *others = DEFAULT_CACHE_FORMATS
    kinds = {system.device.architecture for system in systems}
    return [first, *(kv for kv in others if all(supported(kv, k) == "native" for k in kinds))]


def _select_rows(plan: "Plan", top: int) -> "pd.DataFrame":
    """Return ``top`` rows spread over the front, fastest first; the best one is included."""
    front, best = plan.pareto, plan.best
    others = front.drop(index=best.name, errors="ignore")
    positions = np.linspace(0, len(others) - 1, min(top - 1, len(others))).round().astype(int)
    names = {*others.index[positions], best.name}
    return plan.candidates.loc[list(names)].sort_values("tpot_ms")


def _cell(name: str, row: "pd.Series[Any]") -> str:
    from foretune.plan.serve.explanation import format_number
    from foretune.plan.serve.planner import MAX_EXTRAPOLATED_SHARE

    value = row[name]
    if name in ("formats", "prefill"):
        short = str(value).replace(", ", "/").removesuffix(" cache").replace(" × ", "×")
        guess = name == "formats" and row["guessed"] > MAX_EXTRAPOLATED_SHARE
        return f"{short} ?" if guess else short
    return format_number(value) if isinstance(value, float) else str(value)
