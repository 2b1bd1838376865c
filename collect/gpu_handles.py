"""NVML's handles of the GPUs that this process may use."""

import os
from typing import Any


def visible_gpus(nvml: Any) -> list[Any]:
    """Return NVML's handles of the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves to this process.

    Numbers in that variable are read as NVML's numbers, which follow the PCI address. CUDA's order
    differs only between unequal GPUs, unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` is set. A GPU split
    by MIG appears as one slice: the one in the variable, or the first.
    """
    boards = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    handles = [_first_slice(nvml, board) for board in boards]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return handles
    visible = []
    for entry in map(str.strip, chosen.split(",")):
        if entry.startswith("MIG-"):
            named = query(nvml, "nvmlDeviceGetHandleByUUID", entry)
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
    """Return whether a handle is of a MIG slice."""
    return bool(query(nvml, "nvmlDeviceIsMigDeviceHandle", handle))


def _first_slice(nvml: Any, board: Any) -> Any:
    """Return the first MIG slice of a split GPU, and any other GPU unchanged."""
    mode = query(nvml, "nvmlDeviceGetMigMode", board)
    first = (
        query(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", board, 0) if mode and mode[0] else None
    )
    return board if first is None else first


def query(nvml: Any, function: str, *args: Any) -> Any:
    """Return the driver's answer; None if this driver or board does not support the query."""
    try:
        return getattr(nvml, function)(*args)
    except (AttributeError, nvml.NVMLError):
        return None
