"""Measurement: kernels, timers, power meters, device probe, runners."""

from typing import TYPE_CHECKING

from foretune.support.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.collect.collection import (
        CollectSummary,
        collect_runs,
        plan_configurations,
        plan_rows,
    )
    from foretune.collect.devices import local_device, local_devices
    from foretune.collect.distributed.ray_runner import RayRunner
    from foretune.collect.runner import InProcessRunner, IsolatedRunner, Runner
    from foretune.collect.timing import Timing

__all__ = [
    "CollectSummary",
    "InProcessRunner",
    "IsolatedRunner",
    "RayRunner",
    "Runner",
    "Timing",
    "collect_runs",
    "local_device",
    "local_devices",
    "plan_configurations",
    "plan_rows",
]

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(__name__)
