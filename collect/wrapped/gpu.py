"""Launches on a GPU that torch drives: arrays are torch's tensors, launches go to its stream.

So a kernel is timed, metered and checked as Triton kernels are (`foretune.collect.timing`).
torch calls AMD's GPUs ``cuda``, too.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from foretune.collect.wrapped.arguments import Arguments, ResettingLaunch
from foretune.collect.wrapped.source import Build
from foretune.errors import UsageError

Launcher = Callable[[], None]
MakeLauncher = Callable[[list[Any]], Launcher]


class GpuLaunch(ResettingLaunch):
    """Launches of a kernel.

    Args:
        arguments: of the kernel: tensors and NumPy's numbers.
        prepare: from arguments as a launch takes them, addresses and numbers, to what launches.
    """

    def __init__(self, arguments: Arguments, prepare: MakeLauncher) -> None:
        super().__init__(arguments)
        self._launch = prepare([as_launch_argument(a) for a in arguments.args])

    def run(self) -> None:
        """Launch; whoever needs the result waits."""
        self._launch()


def launch_on_gpu(
    torch: Any, build: Build, arguments: Sequence[Any], prepare: MakeLauncher
) -> GpuLaunch:  # fmt: skip
    """Return launches on copies of ``arguments`` in the memory of the build's GPU."""
    torch.cuda.set_device(build.source.device)
    tensors = tuple(to_gpu(torch, a) for a in arguments)
    return GpuLaunch(Arguments(tensors, {}), prepare)


def to_gpu(torch: Any, argument: Any) -> Any:
    """Return an array as a tensor of torch's current GPU, and a number as it is."""
    return torch.from_numpy(argument).cuda() if isinstance(argument, np.ndarray) else argument


def as_launch_argument(argument: Any) -> Any:
    """Return an argument as a launch takes it: an array by its address."""
    return argument.data_ptr() if hasattr(argument, "data_ptr") else argument


def check_index(torch: Any, index: int, platform: str) -> None:
    """Return if torch sees a GPU of this number.

    Args:
        torch: the module.
        index: of the GPU.
        platform: whose GPUs and torch are asked for: ``CUDA`` or ``ROCm``.

    Raises:
        UsageError: there is none, or torch was built for the other maker's.
    """
    count = torch.cuda.device_count()
    if count and (torch.version.hip is not None) != (platform == "ROCm"):
        raise UsageError(f"this torch is not built for {platform}: install the one that is")
    if not 0 <= index < count:
        raise UsageError(
            f"there is no {platform} device {index}: this machine has {count or 'none'}, as torch "
            "sees it"
        )


@contextmanager
def include_folders(build: Build) -> Iterator[list[str]]:
    """Write the other files of a build, and give the folders in which headers are looked for."""
    with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
        for name, content in build.extra_files.items():
            Path(folder, name).write_text(content, encoding="utf-8")
        yield [folder, build.source.folder]


def check_constant(name: str, array: np.ndarray, capacity: int) -> None:
    """Return if an array fits its place in constant memory.

    Raises:
        RuntimeError: it is larger than the ``capacity`` bytes that the source gives it.
    """
    if array.nbytes > capacity:
        raise RuntimeError(
            f"cmem_args: {name} has {array.nbytes} bytes, and the source has room for {capacity}"
        )
