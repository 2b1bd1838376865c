"""What a plan was asked: of which model, on which GPUs, for which requests."""

import math
from dataclasses import dataclass

from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.system import System
from foretune.plan.describe.workload import Workload
from foretune.plan.serve.requirements import AT_MOST, Requirements

NAMED = 3
"""Systems beyond which a title counts them."""


@dataclass(frozen=True)
class Question:
    """What `foretune.plan.plan` was asked, and what it knew.

    Attributes:
        model: what is served.
        systems: the GPUs to choose from.
        gpus: how many.
        workload: lengths of the requests.
        backend: the engine.
        rate: requests per second that arrive; None where each number in flight is looked at.
        pools: whether prompts might be read by workers of their own.
        tables: whether operators' times come from measured tables.
        corrected: whether measured deployments corrected the formulas.
        seconds: that the answer took; NaN if nobody looked.
    """

    model: ModelDescription
    systems: tuple[System, ...]
    gpus: int
    workload: Workload
    backend: str
    rate: float | None = None
    pools: bool = False
    tables: bool = True
    corrected: bool = False
    seconds: float = math.nan

    def __str__(self) -> str:
        names = " or ".join(system.name for system in self.systems)
        if len(self.systems) > NAMED:
            names = f"one of {len(self.systems)} systems"
        return f"{self.model.name} on {self.gpus} × {names}, {self.backend}"

    @property
    def short_model(self) -> str:
        """The model's name without who published it."""
        return self.model.name.rsplit("/", 1)[-1]


def limits(requirements: Requirements) -> list[str]:
    """Return the limits in words, none where nothing is limited."""
    values = {unit: getattr(requirements, name) for name, unit in AT_MOST.items()}
    found = [f"{value:,.4g} {unit}" for unit, value in values.items() if math.isfinite(value)]
    if requirements.accuracy > 0:
        found.append(f"quality of at least {100 * requirements.accuracy:.4g} %")
    return found
