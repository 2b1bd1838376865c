"""``foretune plan serve``: number formats, parallelism and batch size for serving a model.

The steps of `serve`: read and check the options, plan and simulate the best deployment (`answer`),
print it (`show`, and its emissions), write files, and prove it on a real server if asked.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options, plan_links, plan_options, plan_prove
from foretune.cli.carbon import CARBON, check_carbon, show_carbon
from foretune.cli.engine_age import engine_age
from foretune.cli.output import Output
from foretune.cli.plan_answer import Answer
from foretune.cli.plan_request import RequestLengths, check_required, parse_lengths, parse_request
from foretune.cli.plan_table import show_front
from foretune.errors import UsageError
from foretune.support.files import translate_write_errors
from foretune.values import counted

if TYPE_CHECKING:
    from foretune.plan import PlanRequest
    from foretune.plan.cost.steps import StepTimerFactory
    from foretune.plan.serve.deployments.calibration import MeasuredLatencies

RESULTS_PANEL = "Results"
SYSTEM = typer.Option(
    None,
    help="h100_sxm; any GPU, like '4x RTX 3090'; my-box.toml; local (this machine); several, "
    "joined by commas; or all (slow).",
)
GOAL = typer.Option("throughput", "--for", help="Goal: throughput, cost, energy or latency.")
RATE = typer.Option(None, help="Requests per second (Poisson arrivals); finds the fewest GPUs.")
PREFIX = typer.Option(
    None,
    help="Input tokens that are already in the prefix cache; 0, or the mean of --trace.",
    show_default=False,
)
LENGTHS = typer.Option(
    None,
    help="CSV, JSON or Parquet of requests' lengths: isl, osl (also prompt_tokens, "
    "ContextTokens, …), optionally count or share. In place of --isl and --osl.",
)
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
    "joined by commas; auto or auto:fp8: one per layer (as good as fp8), by --sensitivities. "
    "Caches: bf16, fp8, nvfp4, int4_head (vLLM), fp4_e2m1 (SGLang).",
    show_default=False,
)
ENGINE_VERSION = typer.Option(
    "",
    help="Version of your engine, like 0.18: a plan for one that is older than the measured "
    "operators needs --calibrate.",
    show_default=False,
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
SENSITIVITIES = typer.Option(
    None,
    help="CSV of what each layer loses in each format, for --formats auto: layer (from 0), module "
    "(attention, mlp), format, loss.",
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
    isl: str = typer.Option(
        None, help="Input tokens per request: 2048, or several with shares: 512:0.7,4096:0.3."
    ),
    osl: str = typer.Option(None, help="Output tokens per request, like --isl."),
    lengths: Path = LENGTHS,
    prefix: int | None = PREFIX,
    goal: str = GOAL,
    rate: float | None = RATE,
    trace: Path = TRACE,
    pools: bool = typer.Option(
        False, "--pools", help="Also try separate prefill workers, also on another --system."
    ),
    speculative: str = SPECULATIVE,
    formats: str = FORMATS,
    offload: list[str] = plan_links.OFFLOAD,
    link: list[str] = plan_links.LINK,
    backend: str = plan_options.BACKEND,
    engine_version: str = ENGINE_VERSION,
    operators: Path = plan_options.OPERATORS,
    measured: str = MEASURED,
    calibrate: Path = CALIBRATE,
    prices: Path = plan_options.PRICES,
    qualities: Path = QUALITIES,
    sensitivities: Path = SENSITIVITIES,
    ttft: float | None = plan_options.TTFT,
    tpot: float | None = plan_options.TPOT,
    limit: list[str] = plan_options.LIMIT,
    out: Path = OUT,
    kubernetes: Path = KUBERNETES,
    top: int = plan_options.TOP,
    carbon: float | None = CARBON,
    prove: bool = plan_prove.PROVE,
    command: str = plan_prove.COMMAND,
    url: str = plan_prove.URL,
    ssh: str = plan_prove.SSH,
    server_args: str = plan_prove.SERVER_ARGS,
    flags: list[str] = plan_prove.FLAGS,
    loads: str = plan_prove.LOADS,
    load_with: str = plan_prove.LOAD_WITH,
    starts: int = plan_prove.STARTS,
    pairs: int = plan_prove.PAIRS,
    prove_seconds: float | None = plan_prove.SECONDS,
    repeats: int = plan_prove.REPEATS,
    start_limit: float = plan_prove.START_LIMIT,
) -> None:
    """Predict every way to serve a model on the given GPUs, and show the Pareto front.

    Operator times come from --operators, else from the package aiconfigurator-core (extra 'llm'),
    else from rooflines. With --prove, the best plan's server is started, loaded and compared.
    """
    proving = plan_prove.ProveOptions(
        prove=prove,
        command=command,
        url=url,
        ssh=ssh,
        server_args=server_args,
        flags=flags,
        loads=loads,
        load_with=load_with,
        starts=starts,
        pairs=pairs,
        seconds=prove_seconds,
        repeats=repeats,
        start_limit=start_limit,
    )
    requirements = plan_options.parse_limits(limit, ttft, tpot, goal)
    proving.check(requirements)
    asked = parse_lengths(trace, lengths, isl=isl, osl=osl, prefix=prefix)
    check_required(
        model,
        {
            "--system": system,
            "--gpus": gpus,
            "--isl": asked.isl,
            "--osl": asked.osl,
            "--top": top,
        },
    )
    _check_together(context, asked)
    check_carbon(carbon)
    request = parse_request(
        model,
        system=system,
        prices=prices,
        gpus=gpus,
        lengths=asked,
        backend=backend,
        requirements=requirements,
        formats=formats,
        rate=rate,
        pools=pools,
        speculative=speculative,
        offload=offload,
        link=link,
        qualities=qualities,
        sensitivities=sensitivities,
    )

    root = options.root_options(context)
    output = Output(root.as_json)
    timers, _ = plan_options.load_timers(operators)
    caveat = engine_age(request, timers, engine_version, is_calibrated=calibrate is not None)
    corrections = _read_corrections(
        request, timers, output, table=measured, calibration_file=calibrate
    )
    answered = answer(request, asked, timers, corrections)

    for note in (*asked.notes, *caveat):
        output.say(f"note: {note}")
    show(answered, output, top=top)
    emissions = _show_emissions(answered, output, per_kwh=carbon)

    # A plan is answered even if a file cannot be written, or its proof fails. The plan's folder
    # comes first: it is kept even if the other files cannot be written.
    results = {**to_json(answered), **emissions}
    try:
        if out is not None:
            results |= _save_folder(answered, output, out)
        if kubernetes is not None:
            _write_manifest(answered, output, kubernetes)
        if prove:
            results["proof"] = plan_prove.prove_answer(
                answered, corrections, proving, output, root, out=out
            )
    finally:
        output.result(results)


def _check_together(context: typer.Context, lengths: RequestLengths) -> None:
    """Raise UsageError for options that do not go together."""
    given = context.params
    if given["prove"] and given["rate"] is not None and given["loads"]:
        raise UsageError("requests arrive at --rate: leave --loads out")
    differ = lengths.trace is not None or lengths.mix is not None
    if given["prove"] and (given["pools"] or given["speculative"] or differ):
        raise UsageError(
            "--prove starts one server for requests of one length: leave --pools, --speculative, "
            "--trace and --lengths out, and give one --isl and --osl"
        )
    reads_disk = any(text.startswith("disk=") for text in given["offload"])
    if reads_disk and (given["prove"] or lengths.trace is not None):
        raise UsageError(
            "--prove and --trace simulate each request, and the queue at a disk is not simulated: "
            "leave them or --offload disk out"
        )
    if given["pools"] and given["kubernetes"]:
        raise UsageError("a manifest is written for one pool: leave --pools out")


def answer(
    request: "PlanRequest",
    lengths: RequestLengths,
    timers: "StepTimerFactory",
    corrections: "MeasuredLatencies",
) -> Answer:
    """Plan a request, and simulate the best deployment to choose its maximum of tokens per step."""
    from foretune.plan import plan
    from foretune.plan.serve.equal_lengths import with_equal_lengths
    from foretune.plan.serve.launching import launch_commands
    from foretune.plan.serve.simulation import choose_step_tokens, simulate

    found = plan(request, timers, corrections)
    if lengths.trace is not None:
        # Servers must accept the longest request of the trace.
        deployments = [replace(d, max_request_tokens=lengths.longest) for d in found.deployments]
        found = replace(found, deployments=deployments)

    best = found.deployment(found.best)
    replicas = int(found.best["replicas"])

    # Separate pools are simulated only if requests arrive. The simulator has no queue at a disk.
    simulated = None
    arrive = request.rate is not None or lengths.trace is not None
    if (best.pools is None or arrive) and not best.offload.disk_gib:
        # Corrections are of whole deployments, not of steps: the simulator scales its steps so that
        # the time per token agrees. At a rate, the row has the mean over random arrivals instead.
        corrected_tpot_ms = None
        if not corrections.is_empty and request.rate is None:
            corrected_tpot_ms = float(found.best["tpot_ms"])
        best, simulated = choose_step_tokens(
            best,
            request.requirements,
            run=lambda deployment: simulate(
                deployment,
                replicas,
                timers,
                rate=request.rate,
                trace=lengths.trace,
                tpot_ms=corrected_tpot_ms,
            ),
        )
    return Answer(
        plan=found,
        best=best,
        simulated=simulated,
        equal_lengths=with_equal_lengths(best, timers, corrections, request.rate),
        commands=launch_commands(best, replicas),
        timers=timers,
    )


def show(answered: Answer, output: Output, top: int) -> None:
    """Print the Pareto front, its explanation, and the commands that start the best deployment."""
    from foretune.plan.cost.screening import describe_rejected
    from foretune.plan.serve.explanation import notes, sentences
    from foretune.plan.serve.layer_format_sentences import describe_layer_formats

    plan = answered.plan
    if not plan.has_tables:
        output.say("operator times are rooflines, none is measured: pip install '.[llm]'")
    show_front(output, plan, top)
    output.say("")
    for line in sentences(plan):
        output.say(line)

    for line in describe_layer_formats(plan):
        output.say(line)

    caveats = notes(plan)
    if answered.simulated is not None:
        output.say(str(answered.simulated))
        differences = answered.simulated.differences(plan.best.to_dict(), plan.request.rate)
        caveats = [*differences, *caveats]
    if answered.equal_lengths is not None:
        output.say(str(answered.equal_lengths))
    for line in caveats:
        output.say(f"note: {line}")
    for system, versions in _measured_versions(answered).items():
        output.say(_describe_versions(system, plan.request.engine, versions))
    if rejected := describe_rejected(answered.timers.rejected_rows):
        output.say(rejected)

    output.say(f"{len(plan.candidates)} candidates in {plan.seconds:.1f} s; start the best with")
    for command in answered.commands.values():
        output.say(f"\n{command}")


def _measured_versions(answered: Answer) -> dict[str, list[str]]:
    """Return the engine's versions that the best deployment's operators were measured with."""
    best = answered.best
    engine = answered.plan.request.engine
    names = dict.fromkeys([best.prefill_system.name, best.system.name])
    found = {name: answered.timers.measured_versions(name, engine) for name in names}
    return {name: versions for name, versions in found.items() if versions}


def _describe_versions(system: str, engine: str, versions: Sequence[str]) -> str:
    """Return which generation of an engine a plan's times are of."""
    from foretune.plan.describe.engines import ENGINES

    *older, newest = versions
    others = f", some with {counted(len(older), 'older version')}" if older else ""
    return (
        f"operators of {system}: measured with {ENGINES[engine]['name']} {newest}{others}; an "
        "older engine may be slower"
    )


def to_json(answered: Answer) -> dict[str, Any]:
    """Return the JSON object of a plan.

    ``screened`` are the rows of operator tables that were rejected, ``replayed`` the simulation.
    """
    from foretune.plan.serve.plan_json import plan_to_json

    results = dict(plan_to_json(answered.plan, answered.commands))
    results["measured_versions"] = _measured_versions(answered)
    results["screened"] = [rejected._asdict() for rejected in answered.timers.rejected_rows]
    if answered.simulated is not None:
        results["replayed"] = answered.simulated.to_json()
    if answered.equal_lengths is not None:
        results["equal_lengths"] = answered.equal_lengths.to_json()
    return results


def _save_folder(answered: Answer, output: Output, out: Path) -> dict[str, Any]:
    """Write the plan's folder and track it; return where, for the JSON object."""
    from foretune.plan.serve.saving import save_plan

    saved = save_plan(answered.plan, answered.timers, out=out, commands=answered.commands)
    output.say(f"report   {saved.report}")
    output.say(f"MLflow   {saved.tracked_at}")
    return {"report": str(saved.report), "mlflow_run_id": saved.run_id}


def _read_corrections(
    request: "PlanRequest",
    timers: "StepTimerFactory",
    output: Output,
    table: str | None,
    calibration_file: Path | None,
) -> "MeasuredLatencies":
    """Return the corrections of ``--measured`` and ``--calibrate``, which are relative to it."""
    from foretune.plan.serve.deployments.calibration import MeasuredLatencies, read_calibration
    from foretune.plan.serve.deployments.correction_cache import fit_or_load_correction

    if calibration_file is not None and len(request.systems) > 1:
        raise UsageError(
            f"--calibrate {calibration_file} is for one system: give only that --system"
        )

    correction = None
    if table is not None:
        correction = fit_or_load_correction(
            table, progress=output.say, predictors=timers.predictors
        )
    calibration = None
    if calibration_file is not None:
        calibration = read_calibration(
            calibration_file,
            request.model,
            request.systems[0],
            backend=request.engine,
            timers=timers,
            correction=correction,
        )
    return MeasuredLatencies(correction, calibration)


def _show_emissions(answered: Answer, output: Output, per_kwh: float | None) -> dict[str, Any]:
    """Print the grams of CO2 of ``--carbon``, and return them for the JSON object."""
    energy_mj = float(answered.plan.best["energy_mj_per_token"])
    return show_carbon(output, per_kwh, {"best": energy_mj}, "tokens")


def _write_manifest(answered: Answer, output: Output, path: Path) -> None:
    """Write the best deployment's Kubernetes manifest to ``path``."""
    from foretune.plan.serve.kubernetes import manifest
    from foretune.plan.serve.launching import checkpoint

    engine = answered.plan.request.engine
    with translate_write_errors(path):
        path.write_text(manifest(answered.best, engine, answered.replicas), encoding="utf-8")

    # Pods cannot load a placeholder, nor a folder of this machine.
    served = checkpoint(answered.best, engine)
    must_replace = served.is_placeholder or Path(served.name).exists()
    advice = ""
    if must_replace:
        advice = f"replace {served.name} with a checkpoint that pods can load, then "
    output.say(f"\nor on Kubernetes: {advice}kubectl apply -f {path}")
