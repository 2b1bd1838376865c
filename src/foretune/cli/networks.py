"""Networks on the command line: ``collect --operators MODEL.pt2`` and ``predict MODEL.pt2``."""

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
    counts = parse_sizes(threads, "--threads") if threads else [available_cores()]
    return [(b, t) for b in (parse_sizes(batch, "--batch") if batch else [None]) for t in counts]


def collect_operators(
    output: Output, model: str, variants: list[Variant], out: Path, minutes: float, device: "Device"
) -> None:
    """Measure the operators of a network, then their neighbors in size."""
    from foretune.collect.machine_load import LoadMonitor
    from foretune.collect.networks.measuring import collect_network
    from foretune.collect.networks.network import read_network
    from foretune.datasets import RunLog
    from foretune.plan.cost.tables import OPERATORS_FILE

    _require_cpu(device)
    own = {o: None for variant in variants for o in read_network(model, *variant).operators}
    every = list(dict.fromkeys([*own, *(near for o in own for near in o.neighbors())]))
    with (
        RunLog(out / OPERATORS_FILE, device) as log,
        progress_bar() as progress,
        LoadMonitor(device) as watch,
    ):
        done = collect_network(every, log, device, minutes, progress=progress)
    if done.rows and (disturbance := watch.load.disturbance):
        output.say(f"times may be off: {disturbance}")
    report(
        output,
        done,
        len(every),
        out,
        f"predict {model} --operators {out}",
        device=device.name,
        disturbed=watch.load.disturbance,
    )


def report(
    output: Output, done: "CollectSummary", every: int, out: Path, use: str, **more: Any
) -> None:
    """Show how many of the operators were measured, and the command that uses them."""
    left = every - done.rows - done.reused
    output.say(
        f"{out}: {done.rows} new rows ({done.ok} ok, {done.failed} failed), {done.reused} reused, "
        f"{left} of {every} not measured, {done.seconds:.0f} s"
    )
    output.say(f"foretune {use} uses them")
    output.result({**asdict(done), "left": left, **more, "out": str(out)})


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
    predictor, entries = NetworkPredictor(read_runs(folder / OPERATORS_FILE)), []
    for batch, count in variants:
        network = read_network(model, batch, count)
        predicted = predictor.predict(network, device)
        low, high = predicted.interval_ms
        entries.append(
            {
                "batch": network.batch,
                "threads": count,
                "time_ms": predicted.time_ms,
                "low": low,
                "high": high,
                "energy_mj": predicted.energy_mj,
                "weight_bytes": network.weight_bytes,
                "activation_bytes": network.activation_bytes,
                "peak_memory_bytes": predicted.memory_bytes,
                "by_roofline": predicted.unknown,
                "operators": predicted.operators.to_dict("records"),
            }
        )
    _show(output, model, entries)
    if len(entries) == 1:
        table = predicted.operators
        rows = [
            [
                f"{o['kernel']}",
                format_config(o["problem"]),
                f"{o['count']}",
                f"{o['count'] * o['time_ms']:.3g}",
                f"{o['count'] * o['time_ms'] / predicted.time_ms:.0%}",
                o["source"],
            ]
            for o in table.head(MAX_SHOWN).to_dict("records")
        ]
        columns = ("kernel", "problem", "times", "ms", "share", "source")
        output.table(f"{len(rows)} of {len(table)} distinct operators", columns, rows)
    if unknown := sorted({op for e in entries for op in e["by_roofline"]}):
        output.say(f"not measured, so by roofline: {', '.join(unknown)}")
    output.result({"model": model, "device": device.name, "predictions": entries})


def _show(output: Output, model: str, entries: list[dict[str, Any]]) -> None:
    metered = any(e["energy_mj"] == e["energy_mj"] for e in entries)
    rows = [
        [
            f"{e['batch']}",
            f"{e['threads']}",
            f"{e['time_ms']:.3g}",
            f"{e['low']:.3g}–{e['high']:.3g}",
            f"{e['time_ms'] / e['batch']:.3g}",
            f"{e['peak_memory_bytes'] / MIB:.1f}",
            *([f"{e['energy_mj']:.3g}"] if metered else []),
        ]
        for e in entries
    ]
    names = ("batch", "threads", "ms", "90 % interval", "ms per item", "peak MiB")
    output.table(f"{model}: predicted", (*names, "mJ") if metered else names, rows)


def _require_cpu(device: "Device") -> None:
    require("torch", "gpu", "networks of torch.export")
    if device.kind != "cpu":
        raise UsageError("networks are measured and predicted on CPUs: give --device cpu")
