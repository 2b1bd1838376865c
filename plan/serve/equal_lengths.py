"""What a plan for requests of several lengths would promise if all had the mean lengths.

That is the simplest plan. It stands beside the other, because it shows what the lengths change.
"""

from dataclasses import dataclass, replace
from typing import Any

from foretune.plan.describe.layout import Workload
from foretune.plan.serve.candidates import predict
from foretune.plan.serve.deployments.calibration import MeasuredLatencies
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.deployment_steps import StepTimers
from foretune.plan.serve.explanation import format_number


@dataclass(frozen=True)
class EqualLengths:
    """The same deployment under the same number of requests, all of the mean lengths.

    Attributes:
        workload: the mean lengths.
        max_requests: requests of a replica that fit in memory.
        mixed_max_requests: the same with the lengths as they are.
    """

    workload: Workload
    ttft_ms: float
    tpot_ms: float
    tokens_per_s_per_gpu: float
    memory_gib: float
    max_requests: int
    mixed_max_requests: int

    def __str__(self) -> str:
        fit = f"{self.max_requests:,} requests fit instead of {self.mixed_max_requests:,}"
        return (
            f"if all requests had the mean lengths, {self.workload.isl:,} and "
            f"{self.workload.osl:,}: {format_number(self.ttft_ms)} ms to the first token, "
            f"{format_number(self.tpot_ms)} per further token, "
            f"{format_number(self.tokens_per_s_per_gpu)} tokens/s per GPU, "
            f"{format_number(self.memory_gib)} GiB; {fit}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        values = {name: value for name, value in vars(self).items() if name != "workload"}
        return {"isl": self.workload.isl, "osl": self.workload.osl, **values}


def with_equal_lengths(
    deployment: Deployment, timers: StepTimers, measured: MeasuredLatencies
) -> EqualLengths | None:
    """Return what a deployment promises for the mean lengths; None if its requests are equal."""
    workload = deployment.workload
    if workload.mix is None:
        return None
    equal = replace(workload, mix=None)
    alike = replace(deployment, workload=equal)
    row = predict([alike], timers, measured).iloc[0]
    return EqualLengths(
        workload=equal,
        ttft_ms=float(row["ttft_ms"]),
        tpot_ms=float(row["tpot_ms"]),
        tokens_per_s_per_gpu=float(row["tokens_per_s_per_gpu"]),
        memory_gib=float(row["memory_gib"]),
        max_requests=alike.max_requests,
        mixed_max_requests=deployment.max_requests,
    )
