"""Messages of plans without a feasible deployment: what is missing, and what to change."""

from collections.abc import Sequence
from math import ceil

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import GIB, USABLE_SHARE, layer_bytes
from foretune.plan.describe.layout import Offload
from foretune.plan.describe.system import System
from foretune.plan.serve.arrivals import MIN_GOODPUT_SHARE
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.engine_support import unsupported_offload
from foretune.plan.serve.request import PlanRequest
from foretune.plan.serve.requirements import Requirements

UNKNOWN_GOAL_MESSAGES = {
    "cost": "these systems have no known price: add one with --prices FILE",
    "energy": "the power limit of these systems is unknown: choose another goal with --for",
}
"""Goal -> message when no system has the data to compute it."""


def infeasible_message(candidates: pd.DataFrame, requirements: Requirements) -> str:
    """Return why no candidate is feasible, with the nearest value."""
    # Some limit is met by no candidate at all.
    violations = requirements.violations(candidates)
    if violations:
        return f"no deployment meets the limits: at best {', '.join(violations)}"

    # Some candidates meet every limit on average, but too few of their requests do, or they may
    # not do so when measured.
    within = candidates[requirements.feasible(candidates)]
    if len(within) and (within["good"] < MIN_GOODPUT_SHARE).all():
        return (
            f"at this rate, at most {100 * within['good'].max():.0f} % of the requests meet the "
            f"limits, not {100 * MIN_GOODPUT_SHARE:.0f}: use a lower --rate, more --gpus, or relax "
            "the limits"
        )
    if len(within):
        return (
            "no deployment is likely enough to meet the limits: the best has a probability "
            f"of {100 * within['sure'].max():.0f} %; relax them, or plan without --measured"
        )

    # Each limit is met by some candidate, but all of them by none.
    fastest = candidates.loc[candidates["tpot_ms"].idxmin()]
    return (
        "no deployment meets all limits at once: relax a limit; the fastest deployment takes "
        f"{fastest['tpot_ms']:.1f} ms per token and {fastest['ttft_ms']:.0f} ms to the first token"
    )


def too_large_message(
    request: PlanRequest, system: System, deployments: Sequence[Deployment]
) -> str:
    """Return how much memory a model needs that fits on none of a system's ``deployments``."""
    model = request.model
    if not deployments:
        return (
            f"{model.name} cannot be split over {request.gpus} GPUs in these formats: "
            "try another --gpus"
        )

    # The deployment that needs the least memory, without offloading.
    on_gpu = [deployment for deployment in deployments if not deployment.offload.weights_gib]
    needed_gib = [deployment.memory(deployment.layout.dp).gib for deployment in on_gpu]
    smallest = on_gpu[int(np.argmin(needed_gib))]
    usable_gib = USABLE_SHARE * system.memory_gib
    missing_gib = ceil(min(needed_gib) - usable_gib)

    # Offloading helps if the layers' weights are at least as large as the missing memory.
    layers_gib = sum(layer_bytes(model, smallest.layout, smallest.formats)) / GIB
    can_offload = not unsupported_offload(Offload(1.0), request.engine)
    offload_hint = ""
    if can_offload and missing_gib <= layers_gib:
        offload_hint = f", or offload weights to host memory: --offload {missing_gib}"

    return (
        f"{model.name} does not fit on {request.gpus} × {system.name} "
        f"({system.memory_gib:.0f} GiB each, {usable_gib:.0f} of them usable): "
        f"it needs at least {min(needed_gib):.0f} GiB per GPU; "
        f"use more --gpus or smaller --formats{offload_hint}"
    )
