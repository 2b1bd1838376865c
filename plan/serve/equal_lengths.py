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

FIGURES = ("ttft_ms", "tpot_ms", "tokens_per_s_per_gpu", "memory_gib")
"""Columns of a plan that are compared."""


@dataclass(frozen=True)
class EqualLengths:
    """The same deployment under the same number of requests, all of the mean lengths.

    Attributes:
        workload: the mean lengths.
        ttft_ms, tpot_ms, tokens_per_s_per_gpu, memory_gib: as in plans. None if requests arrive at
            a rate: then a plan has fewer in flight than its deployment is made for.
        max_requests: requests of a replica that fit in memory.
        mixed_max_requests: the same with the lengths as they are.
    """

    workload: Workload
    ttft_ms: float | None
    tpot_ms: float | None
    tokens_per_s_per_gpu: float | None
    memory_gib: float | None
    max_requests: int
    mixed_max_requests: int

    def __str__(self) -> str:
        fit = f"{self.max_requests:,} requests fit instead of {self.mixed_max_requests:,}"
        lead = (
            f"if all requests had the mean lengths, {self.workload.isl:,} and "
            f"{self.workload.osl:,}: "
        )
        figures = (self.ttft_ms, self.tpot_ms, self.tokens_per_s_per_gpu, self.memory_gib)
        units = ("ms to the first token", "per further token", "tokens/s per GPU", "GiB")
        told = [
            f"{format_number(figure)} {unit}"
            for figure, unit in zip(figures, units, strict=True)
            if figure is not None
        ]
        return lead + "; ".join([", ".join(told), fit] if told else [fit])

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        values = {name: value for name, value in vars(self).items() if name != "workload"}
        return {"isl": self.workload.isl, "osl": self.workload.osl, **values}


def with_equal_lengths(
    deployment: Deployment, timers: StepTimers, measured: MeasuredLatencies, rate: float | None
) -> EqualLengths | None:
    """Return what a deployment promises for the mean lengths; None if its requests are equal.

    Latencies are those with the deployment's requests in flight, so none are given at a ``rate``.
    """
    workload = deployment.workload
    if workload.mix is None:
        return None
    equal = replace(workload, mix=None)
    alike = replace(deployment, workload=equal)
    figures: dict[str, float | None] = dict.fromkeys(FIGURES)
    if rate is None:
        row = predict([alike], timers, measured).iloc[0]
        figures = {name: float(row[name]) for name in FIGURES}
    return EqualLengths(
        workload=equal,
        **figures,
        max_requests=alike.max_requests,
        mixed_max_requests=deployment.max_requests,
    )
