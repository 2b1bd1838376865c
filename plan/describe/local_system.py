"""This machine as a system to deploy on."""

from collections.abc import Mapping

from foretune.collect.gpus import local_gpus
from foretune.collect.probe import local_device
from foretune.errors import UnknownName
from foretune.plan.describe.system import System, find_system

LOCAL = "local"


def resolve_system(name: str, prices: Mapping[str, float] | None = None) -> System:
    """Return the system that ``name`` means: ``local`` is this machine, others as `find_system`.

    Args:
        name: ``local``, or of a system.
        prices: USD per GPU and hour, by system; None takes the shipped ones.

    Raises:
        UnknownName: nobody knows it; the nearest names are offered.
    """
    return local_system(prices) if name.lower() == LOCAL else find_system(name, prices)


def local_system(prices: Mapping[str, float] | None = None) -> System:
    """Return this machine: its GPUs of the first kind, or its CPU where it has none.

    A GPU that descriptors know is the system they describe, with its links and price. Of others
    nothing is known about links: they are taken to be PCIe.
    """
    gpus = local_gpus()
    if not gpus:
        return System.from_device(local_device("cpu"))
    first = gpus[0]
    try:
        return find_system(first.name, prices)
    except UnknownName:
        return System.from_device(first, sum(gpu.name == first.name for gpu in gpus))
