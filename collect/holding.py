"""Letting a device wait until what it is to be timed with has been queued."""

from typing import Any

DELAY_CYCLES = 60_000
"""The device waits per launch that is queued meanwhile: some 30 µs."""


def delay_kernel_start(interface: Any, launches: int = 1) -> None:
    """Let a device wait while so many launches are queued: they then start on time.

    Args:
        interface: ``torch.cuda``, or what stands for it; one that cannot wait is left alone.
        launches: that follow.
    """
    if (sleep := getattr(interface, "_sleep", None)) is not None:
        sleep(DELAY_CYCLES * (launches + 1))
