"""NVIDIA GPUs of this machine, as their driver describes them."""

import os
from typing import Any

from foretune.device import Device, find_device
from foretune.errors import MissingExtra, UnknownName
from foretune.extras import require

# Single-precision units of one multiprocessor, by compute capability (CUDA C++ Programming Guide,
# "Compute Capabilities"); the driver counts units, not multiprocessors. 128 for all newer ones.
_UNITS_PER_SM = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}


def nvidia_gpus(nvml: Any = None) -> list[Device]:
    """Return the NVIDIA GPUs this process may use, in CUDA's order; none without a driver.

    Specs are those of the shipped table, where it has the device, replaced by what the driver
    says of this very board: memory, power limit, clock and number of multiprocessors.

    Args:
        nvml: the module ``pynvml``, or one that behaves like it.
    """
    try:
        nvml = nvml or require("pynvml", "gpu", "finding GPUs")
        nvml.nvmlInit()
    except MissingExtra:
        return []
    except nvml.NVMLError:  # no driver, or no GPU it drives
        return []
    try:
        return [_nvidia_gpu(nvml, handle, i) for i, handle in enumerate(visible_gpus(nvml))]
    except nvml.NVMLError:  # a GPU has just fallen off the bus
        return []
    finally:
        nvml.nvmlShutdown()


def visible_gpus(nvml: Any) -> list[Any]:
    """Return NVML's handles of the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves to this process.

    Numbers in that variable are taken as NVML's, which orders GPUs by PCI address; CUDA's own
    order differs only between unequal GPUs, unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` is set. Of a
    GPU that is split (MIG), CUDA sees the slice that the variable names, or else the first.
    """
    boards = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    handles = [_first_slice(nvml, board) for board in boards]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return handles
    visible = []
    for entry in map(str.strip, chosen.split(",")):
        if entry.startswith("MIG-"):
            named = _query(nvml, "nvmlDeviceGetHandleByUUID", entry)
            visible += [named] if named is not None else []
            continue
        matches = [
            handle
            for i, handle in enumerate(handles)
            if entry == str(i)
            or (entry.startswith("GPU-") and nvml.nvmlDeviceGetUUID(boards[i]).startswith(entry))
        ]
        if not matches:  # as in CUDA, nothing after an invalid entry counts
            break
        visible += matches[:1]
    return visible


def is_mig_slice(nvml: Any, handle: Any) -> bool:
    """Return whether a handle is of a slice of a GPU (MIG), not of a whole one."""
    return bool(_query(nvml, "nvmlDeviceIsMigDeviceHandle", handle))


def _first_slice(nvml: Any, board: Any) -> Any:
    """Return the first slice of a GPU that is split; any other GPU as it is."""
    mode = _query(nvml, "nvmlDeviceGetMigMode", board)
    first = (
        _query(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", board, 0) if mode and mode[0] else None
    )
    return board if first is None else first


def _nvidia_gpu(nvml: Any, handle: Any, index: int) -> Device:
    name = str(nvml.nvmlDeviceGetName(handle))
    try:
        known = find_device(name)
    except UnknownName:
        known = Device(name, "gpu")
    capability = _query(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    units = _query(nvml, "nvmlDeviceGetNumGpuCores", handle)
    slice_attributes = (
        _query(nvml, "nvmlDeviceGetAttributes", handle) if is_mig_slice(nvml, handle) else None
    )
    memory = _query(nvml, "nvmlDeviceGetMemoryInfo", handle)
    limit_mw = _query(nvml, "nvmlDeviceGetPowerManagementLimit", handle)
    clock_mhz = _query(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM)
    reported = {
        "cores": slice_attributes.multiprocessorCount
        if slice_attributes
        else units / _UNITS_PER_SM.get(tuple(capability), 128)
        if units and capability
        else 0,
        "clock_mhz": clock_mhz or 0,
        "memory_gib": memory.total / 2**30 if memory else 0,
        "power_limit_w": limit_mw / 1000 if limit_mw else 0,
    }
    return Device(
        name=name,
        kind="gpu",
        architecture=f"sm_{capability[0]}{capability[1]}" if capability else known.architecture,
        specs={
            **known.specs,
            **{spec: float(value) for spec, value in reported.items() if value > 0},
        },
        source="; ".join(filter(None, ["NVIDIA driver", known.source])),
        index=index,
    )


def _query(nvml: Any, function: str, *args: Any) -> Any:
    """Return what the driver answers; None where this driver or board has no answer."""
    try:
        return getattr(nvml, function)(*args)
    except (AttributeError, nvml.NVMLError):
        return None
