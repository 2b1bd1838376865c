"""``foretune collect``: profile runs into a run table."""

from pathlib import Path

import typer

from foretune.cli import collecting, options
from foretune.cli.output import Output
from foretune.console import progress_bar
from foretune.errors import UsageError

SUMMARY = "Profile a kernel over problems and configurations, or operators of language models."
EPILOG = f"'foretune collect {collecting.OPERATORS_COMMAND} --help': operators of language models."


def register(app: typer.Typer) -> None:
    """Add the command to ``app``, and what it collects besides kernels' runs."""
    group = typer.Typer(cls=collecting.CollectGroup)
    group.command(collecting.KERNEL_COMMAND, epilog=EPILOG)(collect)
    collecting.register(group)
    app.add_typer(group, name="collect", help=SUMMARY)


def collect(
    context: typer.Context,
    kernel: str = options.KERNEL,
    problems: list[str] = typer.Option(
        ["8"], help="Number of random problems, or 'M=64,N=64,K=64;M=…' (repeatable)."
    ),
    configs: int = typer.Option(20, help="Configurations per problem, including the default."),
    rows: Path | None = typer.Option(
        None, help="Measure the rows of this table instead, e.g. from 'foretune choose'."
    ),
    out: Path = typer.Option(..., help="Run table to write or to continue (Parquet)."),
    device: str = options.DEVICE,
    runner: str = options.RUNNER,
    ray_address: str | None = options.RAY_ADDRESS,
    box: float = typer.Option(0.25, help="Most seconds of timing per configuration."),
    time_limit: float = typer.Option(30.0, help="Most seconds per configuration."),
    wait_quiet: float = options.WAIT_QUIET,
    seed: int = options.SEED,
    store: str | None = options.STORE,
    no_store: bool = options.NO_STORE,
    as_json: bool = options.JSON,
) -> None:
    """Profile a kernel over problems and configurations.

    Each row is on disk as soon as it is measured: if the command is interrupted, run it again to
    continue. Rows that the store knows are taken from there, and new rows go there, too.
    """
    from foretune.collect import Timing, collect_runs, plan_configurations, plan_rows
    from foretune.collect.machine_load import wait_until_idle
    from foretune.datasets import RunLog
    from foretune.datasets.importers.files import read_table
    from foretune.registry import get_kernel
    from foretune.tune.record import SharedMeasurementCache

    chosen, store_setting = get_kernel(kernel), options.read_store(store, no_store)
    options.require_positive_int(configs, "--configs")
    options.require_positive(box, "--box")
    options.require_positive(time_limit, "--time-limit")
    if rows is None:
        wanted = options.read_problems(chosen, problems, seed)
        plan = plan_configurations(chosen, wanted, configs, seed)
    else:
        options.reject_options(
            context, ("problems", "configs", "seed"), "--rows says what is measured, not"
        )
        plan = plan_rows(chosen, read_table(rows))
        for problem in plan:
            options.check_memory(chosen, problem)
    output, timing = Output(as_json), Timing(max_seconds=box)
    with (
        options.make_runner(
            runner, ray_address, chosen, device, timing, time_limit
        ) as active_runner,
        RunLog(out, active_runner.device) as log,
        progress_bar() as progress,
    ):
        if others := log.kernels() - {kernel}:
            raise UsageError(f"{out} holds runs of {', '.join(others)}: give another --out")
        record = SharedMeasurementCache(chosen, active_runner.device, store_setting, log)
        wait_until_idle(active_runner.watch, wait_quiet, progress)
        with active_runner.watch() as watch:
            done = collect_runs(chosen, plan, record, active_runner, progress)
    output.say(
        f"{out}: {done.rows} new rows ({done.ok} ok, {done.failed} failed), "
        f"{done.reused} known already, {done.seconds:.0f} s"
    )
    if done.rows and (disturbance := watch.load.disturbance):
        output.say(f"times may be off: {disturbance}; --wait-quiet SECONDS waits")
    output.result(
        {"rows": done.rows, "ok": done.ok, "failed": done.failed, "reused": done.reused,
         "seconds": done.seconds, "out": str(out), "disturbed": watch.load.disturbance}
    )  # fmt: skip
