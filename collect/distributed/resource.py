"""What Ray knows a device as: a custom resource, one unit of which is one device."""

import re
from collections import Counter
from collections.abc import Iterable

from foretune.device import Device, canonical_name


def resource_of(device: Device) -> str:
    """Return the name of the resource that equal devices share.

    Made from what the descriptor says for certain, not from measured rates; for example
    ``foretune:NVIDIA-H200:sm_90:132-cores``.
    """
    cores = f"{device.specs['cores']:.0f}-cores" if "cores" in device.specs else ""
    parts = ("foretune", device.name, device.architecture, cores)
    return ":".join(re.sub(r"[^\w.+-]+", "-", part).strip("-") for part in parts)


def resource_counts(devices: Iterable[Device]) -> dict[str, int]:
    """Return how many devices there are by resource, as ``ray start --resources`` takes it."""
    return dict(Counter(map(resource_of, devices)))


def matching_resources(name: str, available: Iterable[str]) -> list[str]:
    """Return those of the resources on offer that are devices called ``name``."""
    start = resource_of(Device(canonical_name(name), "gpu")).rstrip(":").lower() + ":"
    return sorted(r for r in available if r.lower().startswith(start))
