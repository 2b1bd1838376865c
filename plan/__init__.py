"""Plans deployments of language models: formats, parallelism and batch, without a GPU."""

from typing import TYPE_CHECKING

from foretune.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.plan.cost.decoder import mixed_operators, step_operators
    from foretune.plan.cost.memory import RankMemory, fits, max_requests, rank_memory
    from foretune.plan.cost.operator import Operator, Part
    from foretune.plan.describe.accuracy import published_accuracy, read_accuracy, recovery
    from foretune.plan.describe.catalog import describe_model, known_models
    from foretune.plan.describe.description import ModelDescription
    from foretune.plan.describe.formats import (
        FORMATS,
        Format,
        Formats,
        checkpoint_formats,
        supported,
    )
    from foretune.plan.describe.layout import Layout, illegal_because, legal_layouts
    from foretune.plan.describe.speculation import Speculation
    from foretune.plan.describe.system import (
        System,
        find_system,
        known_systems,
        published_prices,
        read_prices,
    )
    from foretune.plan.describe.workload import Workload
    from foretune.plan.serve.launching import Launch, launch, launch_commands
    from foretune.plan.serve.planner import Plan, plan
    from foretune.plan.serve.requirements import Requirements

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
    "Requirements",
    "Speculation",
    "System",
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
    "max_requests",
    "mixed_operators",
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

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "describe.accuracy": ("published_accuracy", "read_accuracy", "recovery"),
            "describe.description": ("ModelDescription",),
            "describe.formats": ("FORMATS", "Format", "Formats", "checkpoint_formats", "supported"),
            "serve.launching": ("Launch", "launch", "launch_commands"),
            "describe.layout": ("Layout", "illegal_because", "legal_layouts"),
            "cost.memory": ("RankMemory", "fits", "max_requests", "rank_memory"),
            "describe.catalog": ("describe_model", "known_models"),
            "cost.operator": ("Operator", "Part"),
            "serve.planner": ("Plan", "plan"),
            "cost.decoder": ("mixed_operators", "step_operators"),
            "describe.system": (
                "System",
                "find_system",
                "known_systems",
                "published_prices",
                "read_prices",
            ),
            "serve.requirements": ("Requirements",),
            "describe.speculation": ("Speculation",),
            "describe.workload": ("Workload",),
        },
    )
