"""Networks on the command line: ``collect --operators MODEL.pt2`` and ``predict MODEL.pt2``."""

import itertools
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli.knob_values import parse_values
from foretune.cli.output import Output, format_config
from foretune.device import available_cores
from foretune.errors import UsageError
from foretune.support.console import progress_bar
from foretune.support.lazy import require

if TYPE_CHECKING:
    from foretune.collect.collection import CollectSummary
    from foretune.collect.networks.operators import NetworkOperator
    from foretune.device import Device

SUFFIX = ".pt2"
PANEL = "Networks (MODEL.pt2 of torch.export.save)"
BATCHES = typer.Option(
    "", help="Batch sizes, 1,4; the graph must have a dynamic first size.", rich_help_panel=PANEL
)
THREADS = typer.Option("", help="Threads of torch, 1,2. Default: all.", rich_help_panel=PANEL)
FOLDER = typer.Option(
    None, help="Folder of 'foretune collect --operators MODEL.pt2'.", rich_help_panel=PANEL
)
MIB = 2**20
MAX_SHOWN = 10
MAX_SIZE = 2**20  # maximum number of tokens, ranks or threads; larger ones are typing errors
Variant = tuple[int | None, int]  # batch size (None: the graph's) and number of threads


def parse_sizes(text: str, option: str) -> list[int]:
    """Parse ``1,64,4096`` or ``1..8192:x2`` (see `parse_range`) into ascending sizes."""
    values = parse_values(text)
    sizes = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    if len(sizes) < len(values):
        raise UsageError(f"{option} {text}: write sizes like 1,64,4096 or 1..8192:x2")
    if not all(1 <= size <= MAX_SIZE for size in sizes):
        raise UsageError(f"{option} {text}: give sizes between 1 and {MAX_SIZE}")
    return sorted(set(sizes))


def parse_variants(batch: str, threads: str) -> list[Variant]:
    """Return every combination of ``--batch`` and ``--threads``."""
    batches: list[int] | list[None] = parse_sizes(batch, "--batch") if batch else [None]
    counts = parse_sizes(threads, "--threads") if threads else [available_cores()]
    return list(itertools.product(batches, counts))


def collect_operators(
    output: Output,
    model: str,
    *,
    variants: list[Variant],
    out: Path,
    minutes: float,
    device: "Device",
) -> None:
    """Measure the operators of a network, then their neighbors in size."""
    from foretune.collect.machine_load import LoadMonitor
    from foretune.collect.networks.measuring import collect_network
    from foretune.collect.networks.network import read_network
    from foretune.datasets import RunLog
    from foretune.plan.cost.tables import OPERATORS_FILE

    _require_cpu(device)
    own_operators: list[NetworkOperator] = []
    for batch, n_threads in variants:
        own_operators += read_network(model, batch, n_threads).operators
    neighbors: list[NetworkOperator] = []
    for operator in own_operators:
        neighbors += operator.neighbors()
    operators = list(dict.fromkeys([*own_operators, *neighbors]))
    with (
        RunLog(out / OPERATORS_FILE, device) as log,
        progress_bar() as progress,
        LoadMonitor(device) as watch,
    ):
        done = collect_network(operators, log, device, minutes, progress=progress)

    disturbance = watch.load.disturbance
    if done.rows and disturbance:
        output.say(f"times may be off: {disturbance}")
    report(
        output,
        done,
        n_operators=len(operators),
        out=out,
        use=f"predict {model} --operators {out}",
        device=device.name,
        disturbed=disturbance,
    )


def report(
    output: Output, done: "CollectSummary", *, n_operators: int, out: Path, use: str, **more: Any
) -> None:
    """Show how many of the operators were measured, and the command that uses them.

    ``more`` goes into the JSON object.
    """
    n_left = n_operators - done.rows - done.reused
    output.say(
        f"{out}: {done.rows} new rows ({done.ok} ok, {done.failed} failed), {done.reused} reused, "
        f"{n_left} of {n_operators} not measured, {done.seconds:.0f} s"
    )
    output.say(f"foretune {use} uses them")
    output.result({**asdict(done), "left": n_left, **more, "out": str(out)})


def predict_network(
    output: Output, model: str, folder: Path | None, variants: list[Variant], device: "Device"
) -> None:
    """Predict a network at every batch size and number of threads."""
    from foretune.collect.networks.network import read_network
    from foretune.datasets import read_runs
    from foretune.models.network import NetworkPredictor
    from foretune.plan.cost.tables import OPERATORS_FILE

    _require_cpu(device)
    if folder is None:
        raise UsageError(
            f"give --operators FOLDER: 'foretune collect --operators {model} --out FOLDER' makes it"
        )
    predictor = NetworkPredictor(read_runs(folder / OPERATORS_FILE))
    entries = []
    by_roofline: set[str] = set()
    for batch, n_threads in variants:
        network = read_network(model, batch, n_threads)
        prediction = predictor.predict(network, device)
        by_roofline.update(prediction.unknown)
        low_ms, high_ms = prediction.interval_ms
        entries.append(
            {
                "batch": network.batch,
                "threads": n_threads,
                "time_ms": prediction.time_ms,
                "low": low_ms,
                "high": high_ms,
                "energy_mj": prediction.energy_mj,
                "weight_bytes": network.weight_bytes,
                "activation_bytes": network.activation_bytes,
                "peak_memory_bytes": prediction.memory_bytes,
                "by_roofline": prediction.unknown,
                "operators": prediction.operators.to_dict("records"),
            }
        )
    _show(output, model, entries)
    if len(entries) == 1:
        _show_operators(output, entries[0])
    if by_roofline:
        output.say(f"not measured, so by roofline: {', '.join(sorted(by_roofline))}")
    output.result({"model": model, "device": device.name, "predictions": entries})


def _show(output: Output, model: str, entries: list[dict[str, Any]]) -> None:
    """Print a row per batch size and number of threads, with energy if it is known."""
    is_metered = any(math.isfinite(entry["energy_mj"]) for entry in entries)
    columns = ["batch", "threads", "ms", "90 % interval", "ms per item", "peak MiB"]
    if is_metered:
        columns.append("mJ")
    rows = []
    for entry in entries:
        row = [
            f"{entry['batch']}",
            f"{entry['threads']}",
            f"{entry['time_ms']:.3g}",
            f"{entry['low']:.3g}–{entry['high']:.3g}",
            f"{entry['time_ms'] / entry['batch']:.3g}",
            f"{entry['peak_memory_bytes'] / MIB:.1f}",
        ]
        if is_metered:
            row.append(f"{entry['energy_mj']:.3g}")
        rows.append(row)
    output.table(f"{model}: predicted", columns, rows)


def _show_operators(output: Output, entry: dict[str, Any]) -> None:
    """Print the operators of one prediction that take longest."""
    operators = entry["operators"]
    rows = []
    for operator in operators[:MAX_SHOWN]:
        total_ms = operator["count"] * operator["time_ms"]
        rows.append(
            [
                f"{operator['kernel']}",
                format_config(operator["problem"]),
                f"{operator['count']}",
                f"{total_ms:.3g}",
                f"{total_ms / entry['time_ms']:.0%}",
                operator["source"],
            ]
        )
    title = f"{len(rows)} of {len(operators)} distinct operators"
    output.table(title, ("kernel", "problem", "times", "ms", "share", "source"), rows)


def _require_cpu(device: "Device") -> None:
    require("torch", "gpu", "networks of torch.export")
    if device.kind != "cpu":
        raise UsageError("networks are measured and predicted on CPUs: give --device cpu")
