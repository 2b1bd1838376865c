"""Plans deployments of language models: formats, parallelism and batch, without a GPU."""

from typing import TYPE_CHECKING

from foretune.support.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.plan.cost.operator import Operator
    from foretune.plan.describe.accuracy import read_accuracy
    from foretune.plan.describe.catalog import (
        find_system,
        known_systems,
        published_prices,
        read_prices,
    )
    from foretune.plan.describe.description import ModelDescription
    from foretune.plan.describe.formats import Formats, checkpoint_formats
    from foretune.plan.describe.layout import Layout, Speculation, Workload
    from foretune.plan.describe.model_catalog import describe_model, known_models
    from foretune.plan.describe.system import System
    from foretune.plan.serve.deployments.calibration import MeasuredLatencies
    from foretune.plan.serve.planner import Plan, plan
    from foretune.plan.serve.request import PlanRequest
    from foretune.plan.serve.requirements import Requirements

__all__ = [
    "Formats",
    "Layout",
    "MeasuredLatencies",
    "ModelDescription",
    "Operator",
    "Plan",
    "PlanRequest",
    "Requirements",
    "Speculation",
    "System",
    "Workload",
    "checkpoint_formats",
    "describe_model",
    "find_system",
    "known_models",
    "known_systems",
    "plan",
    "published_prices",
    "read_accuracy",
    "read_prices",
]

_MODULE_OF = {
    "Formats": "foretune.plan.describe.formats",
    "Layout": "foretune.plan.describe.layout",
    "MeasuredLatencies": "foretune.plan.serve.deployments.calibration",
    "ModelDescription": "foretune.plan.describe.description",
    "Operator": "foretune.plan.cost.operator",
    "Plan": "foretune.plan.serve.planner",
    "PlanRequest": "foretune.plan.serve.request",
    "Requirements": "foretune.plan.serve.requirements",
    "Speculation": "foretune.plan.describe.layout",
    "System": "foretune.plan.describe.system",
    "Workload": "foretune.plan.describe.layout",
    "checkpoint_formats": "foretune.plan.describe.formats",
    "describe_model": "foretune.plan.describe.model_catalog",
    "find_system": "foretune.plan.describe.catalog",
    "known_models": "foretune.plan.describe.model_catalog",
    "known_systems": "foretune.plan.describe.catalog",
    "plan": "foretune.plan.serve.planner",
    "published_prices": "foretune.plan.describe.catalog",
    "read_accuracy": "foretune.plan.describe.accuracy",
    "read_prices": "foretune.plan.describe.catalog",
}
"""Public name -> module that defines it: the imports above, which only type checkers run."""

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _MODULE_OF)
