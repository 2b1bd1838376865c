"""``foretune collect``: runs of a kernel, or operators of a language model, as a run table."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from foretune.cli import networks, options
from foretune.cli.output import Output
from foretune.device import Device
from foretune.errors import UsageError
from foretune.support.console import progress_bar
from foretune.support.lazy import require

TYPICAL = "typical"  # name of the set of models whose operators also serve to plan other models
MIN_RUNS_IN_BUDGET = 1000  # an operator is left out if fewer runs of it fit in the time given
MS_PER_MINUTE = 60_000.0
OPERATORS_PANEL = "Operators of language models (--operators)"


def _operator_option(default: Any, text: str) -> Any:
    return typer.Option(default, help=text, rich_help_panel=OPERATORS_PANEL)


def collect(
    context: typer.Context,
    kernel: str = options.KERNEL,
    problems: list[str] = typer.Option(
        ["8"], help="Number of random problems, or 'M=64,N=64,K=64;M=…' (repeatable)."
    ),
    configs: int = typer.Option(20, help="Configurations per problem, including the default."),
    rows: Path | None = typer.Option(
        None, help="Measure the rows of this table instead, e.g. from 'foretune calibrate'."
    ),
    out: Path = typer.Option(
        ..., help="Run table to write or to continue (Parquet); a folder for --operators."
    ),
    device: str = options.DEVICE,
    runner: str = options.RUNNER,
    ray_address: str | None = options.RAY_ADDRESS,
    max_seconds: float = typer.Option(0.25, help="Maximum seconds of timing per configuration."),
    operators: str = _operator_option(
        "",
        f"Measure the operators of this model instead: a Hugging Face id, a folder with its "
        f"config.json, {TYPICAL} (common models), or a graph, MODEL.pt2.",
    ),
    tp: str = _operator_option("1,2,4,8", "Degrees of tensor parallelism."),
    formats: str = _operator_option(
        "", "Formats of weights, bf16,fp8. Default: all that torch and the device support."
    ),
    tokens: str = _operator_option(
        "1..8192:x2", "Tokens of a step: 1,64,4096, or 1..8192:x2 (each twice the last)."
    ),
    minutes: float = _operator_option(10.0, "Start no operator after this many minutes."),
    batch: str = networks.BATCHES,
    threads: str = networks.THREADS,
) -> None:
    """Measure a kernel, or operators of a language model.

    Each row is on disk as soon as it is measured: if the command is interrupted, run it again to
    continue. Stored measurements are reused, and new ones are stored.

    'foretune plan … --operators FOLDER' prefers operators measured here to the engines' tables;
    'foretune predict MODEL.pt2 --operators FOLDER' adds up those of a network.
    """
    output = Output(options.root_options(context).as_json)
    if not operators:
        operator_options = ("tp", "formats", "tokens", "minutes", "batch", "threads")
        options.reject_options(context, operator_options, "without --operators, collect takes no")
        _collect_runs(context, output, out, rows)
        return
    kernel_options = (
        "kernel",
        "problems",
        "configs",
        "rows",
        "runner",
        "ray_address",
        "max_seconds",
    )
    options.reject_options(context, kernel_options, "--operators does not take")
    options.require_positive(minutes, "--minutes")
    if operators.endswith(networks.SUFFIX):
        options.reject_options(context, ("tp", "formats", "tokens"), "a graph does not take")
        variants = networks.parse_variants(batch, threads)
        hardware = options.read_local_device(device)
        networks.collect_operators(
            output, operators, variants=variants, out=out, minutes=minutes, device=hardware
        )
    else:
        options.reject_options(context, ("batch", "threads"), "only a graph, MODEL.pt2, takes")
        _collect_operators(context, output, out)


def _collect_runs(context: typer.Context, output: Output, out: Path, rows: Path | None) -> None:
    """Measure configurations of a kernel: planned ones, or those of the table ``rows``."""
    from foretune.collect.collection import collect_runs, plan_configurations, plan_rows
    from foretune.collect.machine_load import wait_until_idle
    from foretune.collect.timing import Timing
    from foretune.datasets.importers.files import read_table
    from foretune.datasets.run_log import RunLog
    from foretune.tune.store.cache import MeasurementCache

    given = context.params
    root = options.root_options(context)
    kernel = options.read_kernel(given["kernel"])
    options.require_positive_int(given["configs"], "--configs")
    options.require_positive(given["max_seconds"], "--max-seconds")
    if rows is None:
        problems = options.read_problems(kernel, given["problems"], root.seed)
        plan = plan_configurations(kernel, problems, given["configs"], root.seed)
    else:
        options.reject_options(context, ("problems", "configs"), "--rows replaces")
        plan = plan_rows(kernel, read_table(rows))
        for problem in plan:
            options.check_memory(kernel, problem)

    with (
        options.make_runner(context, kernel, Timing(max_seconds=given["max_seconds"])) as runner,
        RunLog(out, runner.device) as log,
        progress_bar() as progress,
    ):
        other_kernels = log.kernels() - {kernel.name}
        if other_kernels:
            raise UsageError(f"{out} holds runs of {', '.join(other_kernels)}: give another --out")
        cache = MeasurementCache.for_kernel(kernel, runner.device, root.store, log)
        wait_until_idle(runner.watch, root.patience_s, progress)
        with runner.watch() as watch:
            done = collect_runs(kernel, plan, cache, runner, progress)

    disturbance = watch.load.disturbance
    output.say(
        f"{out}: {done.rows} new rows ({done.ok} ok, {done.failed} failed), "
        f"{done.reused} reused, {done.seconds:.0f} s"
    )
    if done.rows and disturbance:
        output.say(f"times may be off: {disturbance}; --wait-quiet SECONDS waits")
    output.result({**asdict(done), "out": str(out), "disturbed": disturbance})


def _collect_operators(context: typer.Context, output: Output, out: Path) -> None:
    """Measure the operators of a model at the shapes of one rank, the most informative first."""
    from foretune.collect.devices import local_device, local_gpus

    require("torch", "gpu", "measuring operators of language models")
    from foretune.collect.torch_operators import measuring
    from foretune.datasets.run_log import RunLog
    from foretune.plan import describe_model
    from foretune.plan.cost import design
    from foretune.plan.cost.tables import OPERATORS_FILE

    # What is asked; without --device, a GPU goes first.
    given = context.params
    minutes = given["minutes"]
    if options.is_given(context, "device"):
        hardware = local_device(given["device"])
    else:
        hardware = local_device("cuda" if local_gpus() else "cpu")
    benchmarker = measuring.OperatorBenchmarker(hardware)
    degrees = networks.parse_sizes(given["tp"], "--tp")
    n_tokens = networks.parse_sizes(given["tokens"], "--tokens")
    formats = _parse_formats(given["formats"], hardware)
    model = "" if given["operators"] == TYPICAL else given["operators"]
    names = [model] if model else design.DEFAULT_MODELS

    # The operators of all models; those that take too long are left out.
    planned = []
    for described in map(describe_model, names):
        planned += design.plan_operators(described, degrees, formats, n_tokens)
    max_ms = MS_PER_MINUTE * minutes / MIN_RUNS_IN_BUDGET
    possible, left_out = design.measurable(design.distinct(planned), hardware, max_ms)
    for reason, count in left_out.items():
        output.say(f"left out: {count} operators: {reason}")
    if not possible:
        raise UsageError("no operator is left to measure: give other --formats, or --minutes")

    chosen = design.farthest_first(possible)
    with RunLog(out / OPERATORS_FILE, hardware) as log, progress_bar() as progress:
        done = measuring.collect_operators(chosen, log, benchmarker, minutes, progress)
    networks.report(
        output,
        done,
        n_operators=len(chosen),
        out=out,
        use=f"plan {model or 'MODEL'} --system local --operators {out} …",
        left_out=left_out,
        device=hardware.name,
    )


def _parse_formats(text: str, device: Device) -> list[str]:
    """Return the formats given; by default those that both the device and torch multiply in."""
    from foretune.collect.torch_operators.products import FORMATS as FORMATS_OF_TORCH
    from foretune.plan.describe.formats import FORMATS, find_format, supported

    if text:
        return [find_format(name.strip()).name for name in text.split(",")]
    multiplied = [
        name
        for name in FORMATS
        if name in FORMATS_OF_TORCH and supported(name, device.architecture) == "native"
    ]
    return multiplied or ["bf16"]
