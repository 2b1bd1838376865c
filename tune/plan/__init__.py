"""Planning deployments of language models: formats x parallelism x batch, before any GPU runs."""

from typing import TYPE_CHECKING

from foretune.lazy import lazy

if TYPE_CHECKING:
    from foretune.tune.plan.accuracy import published_accuracy, read_accuracy, recovery
    from foretune.tune.plan.formats import (
        FORMATS,
        Format,
        Formats,
        checkpoint_formats,
        supported,
    )
    from foretune.tune.plan.language_models.catalog import describe_model, known_models
    from foretune.tune.plan.language_models.description import ModelDescription
    from foretune.tune.plan.launching import Launch, launch, launch_commands
    from foretune.tune.plan.layout import Layout, illegal_because, legal_layouts
    from foretune.tune.plan.memory import RankMemory, fits, most_requests, rank_memory
    from foretune.tune.plan.operators.decoder import mixed_operators, step_operators
    from foretune.tune.plan.operators.operator import Operator, Part
    from foretune.tune.plan.planner import Plan, plan
    from foretune.tune.plan.system import (
        System,
        find_system,
        known_systems,
        published_prices,
        read_prices,
    )
    from foretune.tune.plan.wish import Wish
    from foretune.tune.plan.workload import Workload

__all__ = [
    "FORMATS",
    "Format",
    "Formats",
    "Launch",
    "Layout",
    "ModelDescription",
    "Operator",
    "Part",
    "Plan",
    "RankMemory",
    "System",
    "Wish",
    "Workload",
    "checkpoint_formats",
    "describe_model",
    "find_system",
    "fits",
    "illegal_because",
    "known_models",
    "known_systems",
    "launch",
    "launch_commands",
    "legal_layouts",
    "mixed_operators",
    "most_requests",
    "plan",
    "published_accuracy",
    "published_prices",
    "rank_memory",
    "read_accuracy",
    "read_prices",
    "recovery",
    "step_operators",
    "supported",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "accuracy": ("published_accuracy", "read_accuracy", "recovery"),
        "language_models.description": ("ModelDescription",),
        "formats": ("FORMATS", "Format", "Formats", "checkpoint_formats", "supported"),
        "launching": ("Launch", "launch", "launch_commands"),
        "layout": ("Layout", "illegal_because", "legal_layouts"),
        "memory": ("RankMemory", "fits", "most_requests", "rank_memory"),
        "language_models.catalog": ("describe_model", "known_models"),
        "operators.operator": ("Operator", "Part"),
        "planner": ("Plan", "plan"),
        "operators.decoder": ("mixed_operators", "step_operators"),
        "system": (
            "System",
            "find_system",
            "known_systems",
            "published_prices",
            "read_prices",
        ),
        "wish": ("Wish",),
        "workload": ("Workload",),
    },
)
