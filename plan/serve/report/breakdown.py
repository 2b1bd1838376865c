"""What a step's time and a GPU's memory are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import GIB, rank_memory
from foretune.plan.cost.operator import Operator
from foretune.plan.cost.steps import PARTS
from foretune.plan.serve.deployments.analytic import StepTimers, decode_step, prompt_step
from foretune.plan.serve.deployments.deployment import Deployment


@dataclass(frozen=True)
class _SingleOperatorStep:
    """A step of one operator: as a clock times it, so is it part of a whole step."""

    operator: Operator

    def operators(self) -> Sequence[Operator]:
        """Return it."""
        return [self.operator]


def operator_breakdown(
    deployment: Deployment, timers: StepTimers, phase: Literal["prefill", "decode"] = "decode"
) -> pd.DataFrame:
    """Return the operators of one step, those that take longest first.

    Columns: ``operator``, ``part`` (one of `foretune.plan.cost.steps.PARTS`) and ``ms``, of all
    its runs in the step. The milliseconds add up to the step's.

    Args:
        deployment: whose step.
        timers: say what operators take.
        phase: ``decode``: a token for every request that runs; ``prefill``: one prompt by itself.
    """
    step = decode_step if phase == "decode" else prompt_step
    timer = timers(deployment.system, deployment.backend)
    operators = timer.operators(step(deployment))
    times = timer.times([_SingleOperatorStep(operator) for operator in operators])
    table = pd.DataFrame(
        {
            "operator": [operator.name for operator in operators],
            "part": times[list(PARTS)].idxmax(axis=1),
            "ms": times["total"],
        }
    )
    summed = table.groupby(["operator", "part"], as_index=False, sort=False)["ms"].sum()
    return summed.sort_values("ms", ascending=False, kind="stable", ignore_index=True)


def memory_breakdown(deployment: Deployment) -> dict[str, float]:
    """Return what the fullest GPU holds, in GiB: one that writes answers, where pools are two."""
    d = deployment
    held = rank_memory(
        d.loaded_model,
        d.layout,
        d.formats,
        d.workload,
        d.requests_per_worker,
        offloaded_bytes=d.offloaded_weight_bytes,
    )
    parts = {
        "weights": held.weights,
        "cache of keys and values": held.kv_cache,
        "activations": held.activations,
        "buffers of collectives": held.communication,
    }
    return {name: float(np.asarray(size) / GIB) for name, size in parts.items()}
