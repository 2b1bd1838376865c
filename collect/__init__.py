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

_MODULE_OF = {
    "CollectSummary": "foretune.collect.collection",
    "InProcessRunner": "foretune.collect.runner",
    "IsolatedRunner": "foretune.collect.runner",
    "RayRunner": "foretune.collect.distributed.ray_runner",
    "Runner": "foretune.collect.runner",
    "Timing": "foretune.collect.timing",
    "collect_runs": "foretune.collect.collection",
    "local_device": "foretune.collect.devices",
    "local_devices": "foretune.collect.devices",
    "plan_configurations": "foretune.collect.collection",
    "plan_rows": "foretune.collect.collection",
}
"""Public name -> module that defines it: the imports above, which only type checkers run."""

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(__name__, _MODULE_OF)
