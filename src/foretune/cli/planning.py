"""``foretune plan``: formats, parallelism and batch for serving a language model, without a GPU."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.cli.serving import Request, answer, show, verify
from foretune.cli.verifying_plan import verify_vllm
from foretune.errors import ForetuneError, UsageError

if TYPE_CHECKING:
    from foretune.plan import Wish

NONE = float("inf")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(plan)


def plan(
    model: str = typer.Argument(help="Hugging Face id, or a folder with its config.json."),
    system: str = typer.Option(
        ..., help="What to deploy on: h100_sxm; several, joined by commas; local; or all (slow)."
    ),
    gpus: int = typer.Option(..., help="How many GPUs."),
    isl: int = typer.Option(0, help="Tokens of a prompt.", show_default=False),
    osl: int = typer.Option(0, help="Tokens of an answer.", show_default=False),
    ttft: float = typer.Option(NONE, help="Most milliseconds to the first token."),
    tpot: float = typer.Option(NONE, help="Most milliseconds per further token."),
    accuracy: float = typer.Option(0.0, help="Least share of quality that formats keep, 0 … 1."),
    power: float = typer.Option(NONE, help="Most watts of a GPU."),
    memory: float = typer.Option(NONE, help="Most GiB of a GPU."),
    cost: float = typer.Option(NONE, help="Most USD per million tokens."),
    goal: str = typer.Option("throughput", "--for", help="throughput, cost, energy or latency."),
    rate: float = typer.Option(
        None, help="Requests per second, arriving at random: the fewest GPUs are sought."
    ),
    pools: bool = typer.Option(False, "--pools", help="Also try pools of their own for prompts."),
    formats: str = typer.Option(
        "", help="Only these, like 'fp8,nvfp4/fp8': weights, or weights/cache."
    ),
    backend: str = typer.Option("vllm", help="vllm, sglang or trtllm."),
    operators: Path = typer.Option(
        None, help="Folder of operators measured by 'foretune collect llm-ops'; they go first."
    ),
    measured: str = typer.Option(
        None, help="Measured deployments that correct the formulas: a table, or 'published'."
    ),
    prices: Path = typer.Option(None, help="CSV of your prices: system,usd_per_gpu_hour."),
    qualities: Path = typer.Option(
        None,
        help="CSV of measured qualities, instead of published: format (kv:fp8 of a cache), method, "
        "model, benchmark, baseline, quantized, better (higher or lower), source.",
    ),
    out: Path = typer.Option(None, help="Keep the plan in a folder here: report, table, JSON."),
    tracking_uri: str = typer.Option(None, help="MLflow, for --out; default as for campaigns."),
    check: bool = typer.Option(False, "--verify", help="Measure what this machine can check."),
    check_vllm: bool = typer.Option(False, "--verify-vllm", help="Serve it with vLLM, measure."),
    train: bool = typer.Option(False, "--train", help="Plan training; see the options below."),
    batch: int = typer.Option(0, help="--train: sequences per step.", show_default=False),
    sequence: int = typer.Option(0, help="--train: tokens of each.", show_default=False),
    precision: str = typer.Option("bf16", help="--train: of products, bf16 or fp8."),
    tokens: float = typer.Option(0.0, help="--train: to train on, for days and cost."),
    top: int = typer.Option(10, help="Rows that are shown."),
    as_json: bool = options.JSON,
) -> None:
    """Predict every way to serve (or train) a model on some GPUs; show what is worth choosing.

    Times of operators come from --operators, else from the package aiconfigurator-core (extra
    ``llm``), else from rooflines.
    """
    for name, value in (("--top", top), ("--gpus", gpus)):
        options.at_least_one(value, name)
    if train:
        serving = {"--rate": rate, "--pools": pools, "--verify": check, "--out": out,
                   "--verify-vllm": check_vllm, "--measured": measured, "--prices": prices,
                   "--qualities": qualities, "--formats": formats, "--isl": isl, "--osl": osl,
                   "--accuracy": accuracy, "--ttft": ttft < NONE, "--tpot": tpot < NONE,
                   "--power": power < NONE, "--memory": memory < NONE, "--cost": cost < NONE,
                   "several --system": "," in system or system == "all"}  # fmt: skip
        if given := [name for name, value in serving.items() if value]:
            raise UsageError(f"{given[0]} is about serving: plan --train without it")
        from foretune.cli.training import show_training_plan

        show_training_plan(
            model, system, gpus, batch, sequence, precision=precision, tokens=tokens,
            operators=operators, top=top, as_json=as_json,
        )  # fmt: skip
        return
    if check_vllm and rate is not None:
        raise UsageError("--verify-vllm keeps requests in flight: plan it without --rate")
    if batch or sequence or tokens:
        raise UsageError("--batch, --sequence and --tokens are about training: add --train")
    for name, value in (("--isl", isl), ("--osl", osl)):
        options.at_least_one(value, name)
    if rate is not None and not 0 < rate < NONE:
        raise UsageError(f"--rate {rate:g}: give requests per second, more than none")
    options.known_engine(backend)
    from foretune.plan import Wish

    wish = Wish(ttft, tpot, accuracy, power, memory, cost, goal)  # type: ignore[arg-type]
    request = Request(
        model, system, gpus, isl, osl, rate, pools, formats, backend, operators, measured, prices,
        qualities,
    )  # fmt: skip
    _serve(Output(as_json), request, wish, top, check, check_vllm, out, tracking_uri)


def _serve(
    output: Output,
    request: Request,
    wish: "Wish",
    top: int,
    check: bool,
    check_vllm: bool,
    out: Path | None,
    tracking_uri: str | None,
) -> None:
    """Answer, show, check and keep."""
    from foretune.plan.serve.recording import keep, plan_answer

    found = answer(request, wish, output)
    show(output, found, top)
    plan, question = found.plan, found.question
    failed: ForetuneError | None = None
    checks, checked = None, dict[str, Any]()
    try:
        if check:
            checks, checked = verify(output, found)
        if check_vllm:
            best = plan.best
            checked |= {"vllm": verify_vllm(output, plan.deployment(best), best.to_dict())}
    except ForetuneError as e:  # the plan is kept all the same
        failed = e
    kept = {}
    if out is not None:
        where = keep(plan, question, found.clocks, out, tracking_uri, found.commands, checks)
        kept = {"report": str(where.report), "mlflow_run_id": where.run_id}
        output.say(f"report   {where.report}")
        output.say(f"MLflow   {where.mlflow_uri}, run {where.run_id}")
    output.result(plan_answer(plan, question, found.commands) | checked | kept)
    if failed is not None:
        raise failed
