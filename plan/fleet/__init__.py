"""Chooses hardware: the cheapest mix of GPUs for a demand, and servers in a power budget."""

from typing import TYPE_CHECKING

from foretune.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.plan.fleet.budget import Oversubscription, best, oversubscriptions
    from foretune.plan.fleet.capacity import InstanceType, instance_types
    from foretune.plan.fleet.mix import Fleet, Limits, Share, cheapest_fleet, single_fleets
    from foretune.plan.fleet.requests import Demand, read_requests
    from foretune.plan.fleet.server import PowerPhase, Server

__all__ = [
    "Demand",
    "Fleet",
    "InstanceType",
    "Limits",
    "Oversubscription",
    "PowerPhase",
    "Server",
    "Share",
    "best",
    "cheapest_fleet",
    "instance_types",
    "oversubscriptions",
    "read_requests",
    "single_fleets",
]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "budget": ("Oversubscription", "best", "oversubscriptions"),
            "capacity": ("InstanceType", "instance_types"),
            "mix": ("Fleet", "Limits", "Share", "cheapest_fleet", "single_fleets"),
            "requests": ("Demand", "read_requests"),
            "server": ("PowerPhase", "Server"),
        },
    )
