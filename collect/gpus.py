"""GPUs of this machine, whoever made them."""

from foretune.collect import amd, nvidia
from foretune.device import Device


def local_gpus() -> list[Device]:
    """Return the GPUs this process may use, in torch's order."""
    return nvidia.local_gpus() or amd.local_gpus()
