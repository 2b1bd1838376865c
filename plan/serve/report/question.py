"""What a plan was asked: of which model, on which GPUs, for which requests."""

import math
from dataclasses import dataclass

from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.system import System
from foretune.plan.describe.workload import Offload, Workload
from foretune.plan.serve.deployments.deployment import ENGINE_NAMES
from foretune.plan.serve.planner import Plan
from foretune.plan.serve.requirements import UPPER_LIMITS, Requirements
from foretune.tune.report.page import counted, duration, number

MAX_LISTED_SYSTEMS = 3
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
        offload: what might lie in the host's memory.
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
    offload: Offload = Offload()  # noqa: RUF009  # immutable

    def __str__(self) -> str:
        names = " or ".join(system.name for system in self.systems)
        if len(self.systems) > MAX_LISTED_SYSTEMS:
            names = f"one of {len(self.systems)} systems"
        return f"{self.model.name} on {self.gpus} × {names}, {self.backend}"

    @property
    def short_model(self) -> str:
        """The model's name without who published it."""
        return self.model.name.rsplit("/", 1)[-1]

    def facts(self, plan: Plan) -> dict[str, str]:
        """Return what was asked in words, and how much ``plan`` looked at."""
        model, workload = self.model, self.workload
        billions = f"{number(model.parameters() / 1e9)} billion parameters"
        if model.is_moe:
            active = number(model.active_parameters() / 1e9)
            billions += f", {active} billion of them per token"
        cached = f", {workload.prefix:,} of them in the cache already" if workload.prefix else ""
        looked_at = counted(len(plan.candidates), "deployment")
        if math.isfinite(self.seconds):
            looked_at += f" in {duration(self.seconds)}"
        return {
            "Model": f"{model.name}: {model.layers} layers, {billions}",
            "GPUs": " or ".join(f"{self.gpus} × {s.name}" for s in self.systems),
            "Engine": ENGINE_NAMES.get(self.backend, self.backend),
            "Requests": f"prompts of {workload.isl:,} tokens{cached}, answers of {workload.osl:,}",
            "At a time": (
                "as many as is best"
                if self.rate is None
                else f"as they arrive: {self.rate:g} per second"
            ),
            "Limits": "; ".join(limits(plan.requirements)) or "none",
            "Best in": plan.requirements.goal,
            "Drafted": str(plan.deployments[0].speculation or "nothing"),
            "Pools": "prompts may have workers of their own" if self.pools else "one",
            "In the host": f"up to {self.offload}" if self.offload else "nothing",
            "Looked at": looked_at,
        }


def limits(requirements: Requirements) -> list[str]:
    """Return the limits in words, none where nothing is limited."""
    values = {unit: getattr(requirements, name) for name, unit in UPPER_LIMITS.items()}
    found = [f"{value:,.4g} {unit}" for unit, value in values.items() if math.isfinite(value)]
    if requirements.accuracy > 0:
        found.append(f"quality of at least {100 * requirements.accuracy:.4g} %")
    return found
