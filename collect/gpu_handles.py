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
            mig_slice = query(nvml, "nvmlDeviceGetHandleByUUID", entry)
            if mig_slice is not None:
                visible.append(mig_slice)
            continue
        index = _index_of_entry(nvml, entry, boards)
        # As in CUDA, nothing after an invalid entry counts.
        if index is None:
            break
        visible.append(handles[index])
    return visible


def _index_of_entry(nvml: Any, entry: str, boards: list[Any]) -> int | None:
    """Return the first board that an entry names by number or by the start of its UUID."""
    for i, board in enumerate(boards):
        if entry == str(i):
            return i
        if entry.startswith("GPU-") and nvml.nvmlDeviceGetUUID(board).startswith(entry):
            return i
    return None


def is_mig_slice(nvml: Any, handle: Any) -> bool:
    """Return whether a handle is of a MIG slice."""
    return bool(query(nvml, "nvmlDeviceIsMigDeviceHandle", handle))


def _first_slice(nvml: Any, board: Any) -> Any:
    """Return the first MIG slice of a split GPU, and any other GPU unchanged."""
    mode = query(nvml, "nvmlDeviceGetMigMode", board)
    is_split = bool(mode and mode[0])
    if not is_split:
        return board
    first = query(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", board, 0)
    return board if first is None else first


def query(nvml: Any, function: str, *args: Any) -> Any:
    """Return the driver's answer; None if this driver or board does not support the query."""
    try:
        return getattr(nvml, function)(*args)
    except (AttributeError, nvml.NVMLError):
        return None
