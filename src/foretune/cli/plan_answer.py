"""A plan with its best deployment: what ``foretune plan serve`` shows, saves and proves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretune.plan import Plan
    from foretune.plan.cost.steps import StepTimerFactory
    from foretune.plan.serve.deployments.deployment import Deployment
    from foretune.plan.serve.equal_lengths import EqualLengths
    from foretune.plan.serve.simulation import SimulationResult


@dataclass(frozen=True)
class Answer:
    """A plan, and its best deployment with the step size that the simulation chose.

    Attributes:
        simulated: the best deployment's simulated latencies; None if it has pools and no requests
            arrive.
        equal_lengths: what requests of the mean lengths would be promised, if lengths differ.
        commands: engine -> the shell text that starts the best deployment.
        timers: the operator times of the plan.
    """

    plan: "Plan"
    best: "Deployment"
    simulated: "SimulationResult | None"
    equal_lengths: "EqualLengths | None"
    commands: Mapping[str, str]
    timers: "StepTimerFactory"

    @property
    def replicas(self) -> int:
        """Number of replicas of the best deployment."""
        return int(self.plan.best["replicas"])
