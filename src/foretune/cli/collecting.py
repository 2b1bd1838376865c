"""``foretune collect llm-ops``: operators of language models, measured on this machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from foretune.cli import options
from foretune.cli.output import Output
from foretune.console import progress_bar
from foretune.errors import UsageError

if TYPE_CHECKING:
    from foretune.device import Device
    from foretune.plan import Operator

OPERATORS_COMMAND = "llm-ops"
KERNEL_COMMAND = "kernel"
MAX_SIZE = 2**20
"""Tokens of a step, and ranks, beyond which a number must be a slip."""
MIN_RUNS_IN_BUDGET = 1000
"""Runs of the slowest operator that would take all the time: slower ones are left out."""


class CollectGroup(TyperGroup):
    """What follows ``foretune collect`` is a kernel, unless it is `OPERATORS`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Route the arguments to the command that they are for."""
        command = [] if args[:1] == [OPERATORS_COMMAND] else [KERNEL_COMMAND]
        return super().parse_args(ctx, [*command, *args])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Find the command; that of kernels has no name of its own."""
        name, command, rest = super().resolve_command(ctx, args)
        return (None if name == KERNEL_COMMAND else name), command, rest


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(OPERATORS_COMMAND)(operators)


def operators(
    model: str = typer.Argument("", help="Hugging Face id, or a folder with its config.json."),
    tp: str = typer.Option("1,2,4,8", help="Degrees of tensor parallelism, 1,2,4."),
    formats: str = typer.Option("", help="Of weights, bf16,fp8: all that torch and device have."),
    tokens: str = typer.Option("1..8192", help="Of a step: 1,64,4096, or 1..8192 by doubling."),
    out: Path = typer.Option(..., help="Folder to write, or to go on with."),
    minutes: float = typer.Option(10.0, help="Begin no further operator after these."),
    device: str = typer.Option("", "--device", help="cpu or cuda:0; the GPU if there is one."),
    as_json: bool = options.JSON,
) -> None:
    """Measure what plans of a model need, at the shapes of one rank, on this machine.

    Without a MODEL, operators of typical ones. 'foretune plan … --operators DIR' then prefers
    them to the tables of engines. The most telling sizes come first; rows are on disk the moment
    they are measured, and the same command goes on where it stopped. Needs torch.
    """
    from foretune.collect.torch_operators.collect import OperatorBenchmarker, collect_operators
    from foretune.datasets import RunLog
    from foretune.plan.cost.tables import OPERATORS_FILE

    options.require_positive(minutes, "--minutes")
    degrees, sizes = read_sizes(tp, "--tp"), read_sizes(tokens, "--tokens")
    hardware = _device(device)
    bench = OperatorBenchmarker(hardware)
    max_ms = 60_000.0 * minutes / MIN_RUNS_IN_BUDGET
    chosen, reasons = _choose_operators(
        model, degrees, _chosen_formats(formats, hardware), sizes, hardware, max_ms
    )
    output = Output(as_json)
    for reason, count in reasons.items():
        output.say(f"left out: {count} operators: {reason}")
    if not chosen:
        raise UsageError("no operator is left to measure: give other --formats, or --minutes")
    with RunLog(out / OPERATORS_FILE, hardware) as log, progress_bar() as progress:
        done = collect_operators(chosen, log, bench, minutes, progress)
    remaining = len(chosen) - done.rows - done.reused
    output.say(
        f"{out}: {done.rows} new rows ({done.ok} ok, {done.failed} failed), {done.reused} there "
        f"already, {remaining} of {len(chosen)} not measured, {done.seconds:.0f} s"
    )
    output.say(f"foretune plan {model or 'MODEL'} --system local --operators {out} … uses them")
    output.result(
        {"rows": done.rows, "ok": done.ok, "failed": done.failed, "reused": done.reused,
         "left": remaining, "left_out": reasons, "seconds": done.seconds, "device": hardware.name,
         "out": str(out)}
    )  # fmt: skip


def read_sizes(text: str, option: str) -> list[int]:
    """Return the sizes that ``1,64,4096`` or ``1..8192`` (by doubling) mean, each once.

    Raises:
        UsageError: it cannot be read, or a size is not positive.
    """
    sizes: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        try:
            low, high = int(first), int(last if dots else first)
        except ValueError as e:
            raise UsageError(f"{option} {text}: write sizes like 1,64,4096 or 1..8192") from e
        if not 1 <= low <= high <= MAX_SIZE:
            raise UsageError(f"{option} {text}: sizes lie between 1 and {MAX_SIZE}, upwards")
        while low <= high:
            sizes.append(low)
            low *= 2
    return sorted(set(sizes))


def _device(name: str) -> "Device":
    from foretune.collect import local_device
    from foretune.collect.devices import local_gpus

    return local_device(name or ("cuda" if local_gpus() else "cpu"))


def _chosen_formats(text: str, device: "Device") -> list[str]:
    """Return the formats asked for; else those that device and torch both multiply in."""
    from foretune.collect.torch_operators import linear_formats
    from foretune.plan.describe.formats import FORMATS, find_format, supported

    if text:
        return [find_format(name.strip()).name for name in text.split(",")]
    both = [name for name in FORMATS if name in linear_formats()]
    return [name for name in both if supported(name, device.architecture) == "native"] or ["bf16"]


def _choose_operators(
    model: str, degrees: Sequence[int], formats: Sequence[str], sizes: Sequence[int],
    device: "Device", max_ms: float,
) -> "tuple[list[Operator], dict[str, int]]":  # fmt: skip
    from foretune.collect.torch_operators.collect import distinct
    from foretune.plan import describe_model
    from foretune.plan.cost.design import (
        DEFAULT_MODELS,
        farthest_first,
        measurable,
        plan_operators,
    )

    models = [describe_model(name) for name in ([model] if model else DEFAULT_MODELS)]
    planned = [o for m in models for o in plan_operators(m, degrees, formats, sizes)]
    chosen, reasons = measurable(distinct(planned), device, max_ms)
    return farthest_first(chosen), reasons
