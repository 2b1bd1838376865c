"""Local CPUs and GPUs."""

import contextlib
import hashlib
import json
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import platformdirs
import psutil

from foretune.collect import cpu
from foretune.collect.gpu_handles import is_mig_slice, query, visible_gpus
from foretune.collect.machine_load import LoadMonitor, MachineLoad
from foretune.device import (
    MEASURED_WHILE,
    Device,
    available_cores,
    canonical_name,
    find_device_or_none,
)
from foretune.errors import MissingExtra, OutputError, UnknownName
from foretune.support.files import atomic_write, read_json
from foretune.support.lazy import require

_UNITS_PER_SM = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""Single-precision units of one multiprocessor, by compute capability (CUDA C++ Programming Guide,
"Compute Capabilities"). The driver counts units, not multiprocessors."""
_UNITS_PER_NEWER_SM = 128
"""Units of one multiprocessor of all other compute capabilities."""

DRIVER = "/dev/kfd"
"""It exists on Linux if AMD's compute driver runs."""

PROBE_VERSION = 2
"""Increased when the probe changes, so that older cached rates are measured again."""
QUIET_CHECK_S = 0.2
"""Duration of the check whether a machine that was busy during the probe is quiet now."""
_MEASURED = {"memory_gbps", "fp32_gflops", "fp64_gflops"}
"""Specs that the probe measures."""


@dataclass(frozen=True)
class Probe:
    """Measured rates of this CPU by spec, and what disturbed the measurement ("" if nothing)."""

    specs: dict[str, float]
    disturbance: str


_THIS_CPU = Device("", "cpu")
_memo: dict[Path, Probe] = {}
"""Probes of this process, by the file of the cache: some machines cannot write it."""


def nvidia_gpus(nvml: Any = None) -> list[Device]:
    """Return the NVIDIA GPUs this process may use, in CUDA's order; none without a driver.

    Specs come from the shipped table. Memory, power limit, clock and number of multiprocessors come
    from the driver if it reports them. ``nvml`` is the module ``pynvml`` or a substitute.
    """
    try:
        nvml = nvml or require("pynvml", "gpu", "finding GPUs")
        nvml.nvmlInit()
    except MissingExtra:
        return []
    except nvml.NVMLError:  # no driver or no GPU
        return []
    try:
        return [_nvidia_gpu(nvml, handle, i) for i, handle in enumerate(visible_gpus(nvml))]
    except nvml.NVMLError:  # a GPU was lost meanwhile
        return []
    finally:
        nvml.nvmlShutdown()


def _nvidia_gpu(nvml: Any, handle: Any, index: int) -> Device:
    name = str(nvml.nvmlDeviceGetName(handle))
    capability = query(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    memory = query(nvml, "nvmlDeviceGetMemoryInfo", handle)
    memory_gib = memory.total / 2**30 if memory else 0.0
    limit_mw = query(nvml, "nvmlDeviceGetPowerManagementLimit", handle)
    clock_mhz = query(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM)
    reported = {
        "cores": _multiprocessors(nvml, handle, capability),
        "clock_mhz": clock_mhz or 0,
        "memory_gib": memory_gib,
        "power_limit_w": limit_mw / 1000 if limit_mw else 0,
    }

    # The driver's answers replace the specs of the shipped table.
    known = _known_gpu(name, memory_gib)
    specs = dict(known.specs)
    specs |= {spec: float(value) for spec, value in reported.items() if value > 0}
    return Device(
        name=name,
        kind="gpu",
        architecture=f"sm_{capability[0]}{capability[1]}" if capability else known.architecture,
        specs=specs,
        source=_joined("NVIDIA driver", known.source),
        index=index,
    )


def _multiprocessors(nvml: Any, handle: Any, capability: Any) -> float:
    """Return the number of a GPU's multiprocessors, or of its MIG slice's; 0 if unknown."""
    units = query(nvml, "nvmlDeviceGetNumGpuCores", handle)
    if is_mig_slice(nvml, handle):
        attributes = query(nvml, "nvmlDeviceGetAttributes", handle)
        if attributes:
            return float(attributes.multiprocessorCount)
    if not units or not capability:
        return 0.0
    return float(units / _UNITS_PER_SM.get(tuple(capability), _UNITS_PER_NEWER_SM))


def _joined(*sources: str) -> str:
    """Return where specs come from, as text."""
    return "; ".join(source for source in sources if source)


def _known_gpu(name: str, memory_gib: float) -> Device:
    """Return the known device for a driver's name, which may lack the memory size."""
    sized = find_device_or_none(f"{name} {memory_gib:.0f}GB")
    return sized or find_device_or_none(name) or Device(name, "gpu")


def amd_gpus(torch: Any = None) -> list[Device]:
    """Return the AMD GPUs this process may use, in torch's order; none without torch for ROCm.

    Specs come from the shipped table; memory and number of compute units come from ``torch``, which
    is imported if AMD's driver runs.
    """
    if torch is None:
        if not Path(DRIVER).exists():
            return []
        try:
            torch = require("torch", "gpu", "finding GPUs")
        except MissingExtra:
            return []
    if torch.version.hip is None:
        return []
    return [_amd_gpu(torch, i) for i in range(torch.cuda.device_count())]


def _amd_gpu(torch: Any, index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    memory_gib = properties.total_memory / 2**30
    known = _known_gpu(properties.name, memory_gib)
    specs = dict(known.specs)
    specs["cores"] = float(properties.multi_processor_count)
    specs["memory_gib"] = memory_gib
    return Device(
        name=canonical_name(properties.name),
        kind="gpu",
        architecture=properties.gcnArchName.partition(":")[0],
        specs=specs,
        source=_joined("torch for ROCm", known.source),
        index=index,
    )


def local_gpus() -> list[Device]:
    """Return the GPUs this process may use, in torch's order."""
    return nvidia_gpus() or amd_gpus()


def local_devices() -> list[Device]:
    """Return this machine's CPU and the GPUs this process may use."""
    return [local_cpu(), *local_gpus()]


def local_device(name: str | None = None, measure: bool = True) -> Device:
    """Return one device of this machine.

    ``name`` is ``cpu`` (the default), ``cuda:0`` and so on, ``cuda`` for the first GPU, or a
    driver's name. With ``measure``, the CPU's rates are measured unless cached. Raises UnknownName.
    """
    if name is None or name.lower() == "cpu":
        return local_cpu(measure)
    gpus = local_gpus()
    numbered = {f"cuda:{i}": gpu for i, gpu in enumerate(gpus)}
    key = "cuda:0" if name.lower() in ("cuda", "gpu") else name.lower()
    if key in numbered:
        return numbered[key]
    for gpu in gpus:
        if _is_same_device(name, gpu.name):
            return gpu
    if _is_same_device(name, cpu.cpu_name()):
        return local_cpu()
    raise UnknownName("device", name, ["cpu", *numbered, *{gpu.name for gpu in gpus}])


def _is_same_device(name: str, driver_name: str) -> bool:
    """Return whether a user's name and a driver's name are of the same device."""
    known = find_device_or_none(name)
    same_known = known is not None and known is find_device_or_none(driver_name)
    return same_known or name.lower() == driver_name.lower()


def local_cpu(measure: bool = True) -> Device:
    """Return the descriptor of this CPU; unknown specs are absent.

    The rates come from `probe_cpu`; without Numba they are absent.
    """
    features = cpu.host_features()
    specs = {
        "cores": float(available_cores()),
        "clock_mhz": cpu.clock_mhz(),
        **cpu.cache_sizes(),
        "memory_gib": psutil.virtual_memory().total / 2**30,
        "vector_bits": cpu.vector_bits(features),
    }
    try:
        probe = probe_cpu(measure=measure)
    except MissingExtra:
        source = "operating system; rates not measured: pip install '.[cpu]'"
    else:
        source = f"operating system; rates measured (probe {PROBE_VERSION})"
        if probe:
            specs |= probe.specs
            if probe.disturbance:
                source += f"{MEASURED_WHILE}{probe.disturbance}"
    return Device(
        name=cpu.cpu_name(),
        kind="cpu",
        architecture=cpu.architecture(features),
        specs={spec: value for spec, value in specs.items() if value > 0},
        source=source,
    )


def probe_cpu(refresh: bool = False, measure: bool = True) -> Probe | None:
    """Return the measured ``memory_gbps``, ``fp32_gflops`` and ``fp64_gflops`` of this CPU.

    Measuring takes a few seconds. The result is cached as JSON in the user's cache directory (or in
    ``FORETUNE_CACHE``) for this CPU, number of cores and probe version. Rates measured on a busy
    machine are measured again by the first process that finds it quiet; the higher ones stay.
    ``refresh`` measures again now; without ``measure``, the result is None if nothing is cached.
    Raises MissingExtra without Numba.
    """
    # The name alone is not enough: names of virtual machines are ambiguous.
    machine: dict[str, Any] = {
        "probe": PROBE_VERSION,
        "cpu": cpu.cpu_name(),
        "architecture": cpu.architecture(cpu.host_features()),
        "cores": available_cores(),
        **cpu.cache_sizes(),
    }
    digest = hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_directory() / f"cpu-{digest}.json"
    probe = _memo.get(path) or _read(path)
    if measure and _should_measure(probe, refresh, is_first=path not in _memo):
        probe = _measure(probe)
        content = {"machine": machine, **asdict(probe)}
        # On a read-only or full disk, the memo serves this process.
        with contextlib.suppress(OutputError), atomic_write(path) as new:
            new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if probe:
        _memo[path] = probe
    return probe


def _should_measure(probe: Probe | None, refresh: bool, is_first: bool) -> bool:
    """Return whether to measure, given the cached probe; ``is_first``: of this process."""
    if refresh or not probe:
        return True
    return is_first and _can_improve(probe)


def _can_improve(probe: Probe) -> bool:
    """Return whether the machine was busy and is quiet now."""
    if not probe.disturbance:
        return False
    with LoadMonitor(_THIS_CPU) as monitor:
        time.sleep(QUIET_CHECK_S)
    return not monitor.load.disturbance


def _measure(before: Probe | None) -> Probe:
    """Measure the rates; keep higher ones from before."""
    with LoadMonitor(_THIS_CPU) as monitor:
        specs = cpu.measure_cpu()
    load = monitor.load
    if before is None:
        load_of_cpu = MachineLoad(other_load=load.other_load, steal=load.steal)
        return Probe(specs=specs, disturbance=load_of_cpu.disturbance)

    # The machine was quiet just now: what the host takes away during the probe, it always takes.
    disturbance = ""
    if before.disturbance:
        disturbance = MachineLoad(other_load=load.other_load).disturbance
    higher = {spec: max(rate, before.specs[spec]) for spec, rate in specs.items()}
    return Probe(specs={**before.specs, **higher}, disturbance=disturbance)


def cache_directory() -> Path:
    """Return the folder of caches; it is created for its owner alone."""
    folder = Path(os.environ.get("FORETUNE_CACHE") or platformdirs.user_cache_dir("foretune"))
    with contextlib.suppress(OSError):  # on a read-only disk there is none
        folder.mkdir(0o700, parents=True, exist_ok=True)
    return folder


def _read(path: Path) -> Probe | None:
    """Return the probe in a file of the cache; None if there is none, or it is damaged."""
    try:
        content = read_json(path)
        specs = {str(spec): float(value) for spec, value in content["specs"].items()}
        disturbance = str(content["disturbance"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    is_complete = specs.keys() >= _MEASURED
    is_plausible = all(0 < value < math.inf for value in specs.values())
    if not is_complete or not is_plausible:
        return None
    return Probe(specs=specs, disturbance=disturbance)
