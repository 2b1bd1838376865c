"""Measures how fast data come from this machine's disk, and from its memory to its GPU."""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from foretune.errors import UsageError
from foretune.support.lazy import require

FILE_BYTES = 2**21
"""Size of a file: as the page of an engine's cache, of which models need 1 to 8 MiB."""
FILES = 96
"""Files that a pass reads."""
PASSES = 3
"""A rate is the median of these."""
COPY_BYTES = 256 * 2**20
"""Size of a copy to the GPU."""


@dataclass(frozen=True)
class LinkRate:
    """A measured rate.

    Attributes:
        gbps: the median pass, GB/s.
        low: the slowest pass, GB/s.
        high: the fastest pass, GB/s.
    """

    gbps: float
    low: float
    high: float

    @classmethod
    def of_passes(cls, size: int, seconds: list[float]) -> "LinkRate":
        """Return the rate at which ``size`` bytes took these times."""
        rates = [size / 1e9 / taken for taken in seconds]
        return cls(median(rates), min(rates), max(rates))


def measure_disk(folder: Path, files: int = FILES) -> LinkRate:
    """Return how fast files are read from ``folder``, one after another, none of them in memory.

    That is how an engine reads a prefix that it keeps on disk. ``files`` of `FILE_BYTES` are
    written there and removed again.

    Raises:
        UsageError: the folder cannot be written or is full, or the system cannot drop files from
            its memory, so that reading them would show nothing.
    """
    if not hasattr(os, "posix_fadvise"):
        raise UsageError(
            f"this system keeps the files of {folder} in memory, so reading them shows no rate: "
            "give it in GB/s, like disk=3.5"
        )
    try:
        with tempfile.TemporaryDirectory(prefix="foretune-disk-", dir=folder) as inside:
            paths = [Path(inside, f"{number}.bin") for number in range(files)]
            for path in paths:
                _write_through(path, os.urandom(FILE_BYTES))
            seconds = [_read_seconds(paths) for _ in range(PASSES)]
    except OSError as e:
        raise UsageError(
            f"the rate of {folder} cannot be measured ({e.strerror or e}): use a folder that can "
            "be written, or give the rate in GB/s, like disk=3.5"
        ) from e
    return LinkRate.of_passes(files * FILE_BYTES, seconds)


def _write_through(path: Path, content: bytes) -> None:
    """Write a file to the disk itself: only then can the system drop it from memory."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _read_seconds(paths: list[Path]) -> float:
    """Return how long reading the files takes, after the system has dropped them."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    buffer = bytearray(FILE_BYTES)
    start = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            file.readinto(buffer)
    return time.perf_counter() - start


def measure_host_copy() -> LinkRate:
    """Return how fast this machine's GPU receives data from pinned host memory.

    Raises:
        MissingExtra: torch is not installed.
        UsageError: torch sees no GPU.
    """
    torch = require("torch", "gpu", "measuring the link to a GPU")
    gpu = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if gpu is None:
        raise UsageError(
            "torch sees no GPU here, so there is no link to measure: give its rate in GB/s, like "
            "host=55"
        )
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=gpu)
    target.copy_(source)  # the first copy also sets up the transfer

    seconds = []
    for _ in range(PASSES):
        torch.accelerator.synchronize()
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - start)
    return LinkRate.of_passes(COPY_BYTES, seconds)
