"""AMD GPUs of this machine, as torch for ROCm describes them."""

from pathlib import Path
from typing import Any

from foretune.device import Device, find_device_or_none
from foretune.errors import MissingExtra
from foretune.extras import require

DRIVER = "/dev/kfd"
"""Linux has it where AMD's driver for computing runs."""


def amd_gpus(torch: Any = None) -> list[Device]:
    """Return the AMD GPUs this process may use, in torch's order; none without torch for ROCm.

    Specs are those of the shipped table, where it has the device, replaced by what torch says of
    this very board: memory and number of compute units.

    Args:
        torch: the module, or one that behaves like it; else it is imported, if the machine has
            AMD's driver.
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
    known = find_device_or_none(properties.name) or Device(properties.name, "gpu")
    reported = {
        "cores": float(properties.multi_processor_count),
        "memory_gib": properties.total_memory / 2**30,
    }
    return Device(
        name=known.name,
        kind="gpu",
        architecture=properties.gcnArchName.partition(":")[0],
        specs={**known.specs, **reported},
        source="; ".join(filter(None, ["torch for ROCm", known.source])),
        index=index,
    )
