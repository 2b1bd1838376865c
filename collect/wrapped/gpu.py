"""Launches on torch's GPU: arrays are torch tensors, and launches go to torch's stream.

So these kernels are timed, metered and checked like Triton kernels (`foretune.collect.timing`).
torch calls AMD GPUs ``cuda``, too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from foretune.collect.wrapped.call_arguments import Arguments, FunctionLaunch
from foretune.collect.wrapped.source import Build
from foretune.errors import UsageError

Launcher = Callable[[], None]
MakeLauncher = Callable[[list[Any]], Launcher]


def launch_on_gpu(
    torch: Any, build: Build, arguments: Sequence[Any], prepare: MakeLauncher
) -> FunctionLaunch:
    """Return launches on copies of ``arguments`` in the memory of the build's GPU.

    ``prepare`` takes addresses and NumPy numbers, and returns an asynchronous launch.
    """
    torch.cuda.set_device(build.source.device)
    copies = Arguments(tuple(to_gpu(torch, a) for a in arguments), {})
    launch = prepare([a.data_ptr() if hasattr(a, "data_ptr") else a for a in copies.args])
    return FunctionLaunch(lambda *_: launch(), {}, copies)


def to_gpu(torch: Any, argument: Any) -> Any:
    """Copy an array to torch's current GPU; return a number as it is."""
    return torch.from_numpy(argument).cuda() if isinstance(argument, np.ndarray) else argument


def check_index(torch: Any, index: int, platform: str) -> None:
    """Raise `UsageError` unless torch was built for ``CUDA`` or ``ROCm`` and sees GPU ``index``."""
    count = torch.cuda.device_count()
    if count and (torch.version.hip is not None) != (platform == "ROCm"):
        raise UsageError(f"this torch is not built for {platform}: install one that is")
    if not 0 <= index < count:
        raise UsageError(
            f"there is no {platform} device {index}: torch sees {count or 'none'} on this machine"
        )


def check_constant(name: str, array: np.ndarray, capacity: int) -> None:
    """Raise RuntimeError if an array exceeds the ``capacity`` bytes of its constant memory."""
    if array.nbytes > capacity:
        raise RuntimeError(
            f"cmem_args: {name} has {array.nbytes} bytes, and the source has room for {capacity}"
        )
