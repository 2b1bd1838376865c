"""Metering a launch: back to back for a while, so that the meter sees nothing else.

The launches are captured into a graph where the device has graphs: then the host's work between
them is not metered. What runs back to back finds the cache as its predecessor left it: warm, while
times are of a cold one unless the problem or the benchmarker says otherwise.
"""

import time
from collections.abc import Callable
from typing import Any

from foretune.collect.meters import PowerMeter

RAMP_S = 0.3
"""Clocks and power settle in it; not metered."""
WINDOW_S = 0.6
BATCH_MS = 20.0
"""Of work that is queued at once: the pause after it must not count."""
MAX_CAPTURED = 1000


def measure_power(
    meter: PowerMeter,
    run: Callable[[], Any],
    time_ms: float,
    wait: Callable[[], object],
    interface: Any = None,
) -> tuple[float, float]:
    """Return mean power (W) and the energy of one launch (mJ) of ``run``.

    Args:
        meter: of the device.
        run: launches once.
        time_ms: about what a launch takes.
        wait: returns when everything launched is done.
        interface: ``torch.cuda``, or what stands for it; None where there are no graphs.
    """
    batch, count = _batched(run, max(1, int(BATCH_MS / time_ms)), wait, interface)
    _run_for(batch, RAMP_S, wait)
    with meter.window() as window:
        launches = count * _run_for(batch, WINDOW_S, wait)
    return window.power_w, window.energy_mj(launches)


def _batched(
    run: Callable[[], Any], count: int, wait: Callable[[], object], interface: Any
) -> tuple[Callable[[], Any], int]:
    """Return what launches ``count`` times, as a graph where it can be one; and how often."""
    if hasattr(interface, "CUDAGraph"):
        captured = min(count, MAX_CAPTURED)
        try:
            run()
            wait()
            graph = interface.CUDAGraph()
            with interface.graph(graph):
                for _ in range(captured):
                    run()
            return graph.replay, captured
        except Exception:  # not every launch can be captured: then they are metered one by one
            wait()

    def launch() -> None:
        for _ in range(count):
            run()

    return launch, count


def _run_for(batch: Callable[[], Any], seconds: float, wait: Callable[[], object]) -> int:
    """Run batches for so long; return how many."""
    end, batches = time.perf_counter() + seconds, 0
    while batches == 0 or time.perf_counter() < end:
        batch()
        batches += 1
        wait()  # or launches of seconds to come would queue up
    return batches
