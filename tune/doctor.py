"""Reports which parts of Foretune work on this machine, and how to install the rest."""

import importlib.util
import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from foretune.collect.devices import local_devices
from foretune.collect.power import explain_missing_meter, find_meter
from foretune.collect.versions import versions
from foretune.errors import ForetuneError
from foretune.redaction import redact
from foretune.registry import TRITON_PREFIX, get_kernel, registered

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
        "0.7.2.post1", "patch_flashinfer(); for vLLM and SGLang, FORETUNE_FLASHINFER=4"
    ),
    "helion": ("1.5.1", "@helion.kernel(autotuner_fn=foretune.helion_autotuner())"),
    "kernel_tuner": ("1.5.0", "tune_kernel(…, strategy=foretune.KernelTunerStrategy())"),
    "optuna": ("5.0.0", "create_study(sampler=foretune.search.SurrogateSampler())"),
    "tilelang": ("0.1.15", "docs/doors.md has the code"),
}  # fmt: skip
"""Package -> the version that was tested, what lets Foretune in."""


@dataclass(frozen=True)
class Finding:
    """One checked part.

    Attributes:
        what: its name, two or three words.
        works: whether it works.
        note: what was found, or how to get it.
    """

    what: str
    works: bool
    note: str


def examine() -> list[Finding]:
    """Check everything that Foretune can use; the first time, the CPU probe takes a few seconds."""
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
    if importlib.util.find_spec("mlflow") is None:
        note = "tracks campaigns: pip install '.[track]' in the checkout"
        return Finding("MLflow", False, note)
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    note = (
        redact(uri or "")
        or "sqlite:///mlflow.db in the working directory; set MLFLOW_TRACKING_URI to change"
    )
    return Finding("MLflow", True, note)


def _package(module: str, extra: str, purpose: str) -> Finding:
    if importlib.util.find_spec(module) is None:
        return Finding(module, False, f"{purpose}: pip install '.[{extra}]' in the checkout")
    return Finding(module, True, purpose)


def _door(package: str, tested: str, line: str) -> Finding:
    try:
        here = version(package)
    except PackageNotFoundError:
        return Finding(f"inside {package}", False, f"tested {tested}: {line}")
    return Finding(f"inside {package}", True, f"{here}, tested {tested}: {line}")


def _kernel(name: str, on_gpu: bool) -> Finding:
    if name.startswith(TRITON_PREFIX) and not on_gpu:
        return Finding(f"kernel {name}", False, "needs a GPU; this machine has none")
    try:
        kernel = get_kernel(name)
    except ForetuneError as e:
        return Finding(f"kernel {name}", False, str(e))
    names = ", ".join(p.name for p in kernel.problem_parameters)
    return Finding(f"kernel {name}", True, f"problem: {names}")
