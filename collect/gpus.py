"""GPUs of this machine, whoever made them."""

from foretune.collect.amd import amd_gpus
from foretune.collect.nvidia import nvidia_gpus
from foretune.device import Device


def local_gpus() -> list[Device]:
    """Return the GPUs this process may use, in torch's order."""
    return nvidia_gpus() or amd_gpus()
