"""The steps of a deployment, and their times.

A decode step generates tokens for the running requests, a prefill step computes prompts. Each is
that of one attention-DP group, through all pipeline stages.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import MAX_STEP_TOKENS
from foretune.plan.cost.operator import Part
from foretune.plan.cost.steps import Step, StepTimer
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.system import System
from foretune.plan.serve.deployments.deployment import Deployment


class StepTimers(Protocol):
    """Times the steps of engines on systems, as `StepTimerFactory` does."""

    @property
    def has_tables(self) -> bool:
        """Whether times come from measured tables; if not, they are rooflines."""
        ...

    def __call__(self, system: System, backend: str) -> StepTimer:
        """Return the step timer of an engine on a system."""
        ...


def decode_step(deployment: Deployment, requests: int = 0) -> Step:
    """Return a decode step of an attention-DP group through all pipeline stages.

    Each stage has its own batch. ``requests`` 0 means all running ones. With drafting, the step
    yields several tokens (`Deployment.accepted_tokens`).
    """
    batch = requests or requests_per_step(deployment)
    context = int(deployment.workload.mean_context)
    return _with_drafts(
        deployment,
        deployment.layout,
        part=Part(batch, 1 + deployment.drafted, context, "decode"),
        draft_part=Part(batch, 1, context, "decode"),
        draft_steps=deployment.drafted,
    )


def prefill_step(deployment: Deployment, prompts: int = 1) -> Step:
    """Return the prefill step of ``prompts`` prompts."""
    workload = deployment.workload
    part = Part(prompts, workload.new_tokens, workload.prefix, "prefill")
    return _with_drafts(
        deployment, deployment.prefill_layout, part=part, draft_part=part, draft_steps=1
    )


def full_prefill_step(deployment: Deployment) -> Step:
    """Return a prefill step with as many prompts as fit in it."""
    return prefill_step(deployment, prompts_per_step(deployment))


def requests_per_step(deployment: Deployment) -> int:
    """Return the requests of an attention-DP group in one decode step."""
    return max(int(deployment.running / deployment.layout.pp), 1)


def prompts_per_step(deployment: Deployment) -> int:
    """Return the prompts that fit in one step; at least one."""
    return max(round(MAX_STEP_TOKENS / deployment.workload.new_tokens), 1)


def decode_ms(deployments: Sequence[Deployment], timers: StepTimers) -> np.ndarray:
    """Return the milliseconds of a decode step of each deployment."""
    return step_times(deployments, decode_step, timers)["total"].to_numpy()


def prompt_ms(
    deployments: Sequence[Deployment], timers: StepTimers
) -> tuple[np.ndarray, np.ndarray]:
    """Return the milliseconds of a single prompt, and per prompt in full steps."""
    first_ms = prefill_times(deployments, prefill_step, timers)["total"].to_numpy()
    full_ms = prefill_times(deployments, full_prefill_step, timers)["total"].to_numpy()
    prompts_at_once = [prompts_per_step(d) * d.prefill_layout.dp for d in deployments]
    return first_ms, full_ms / np.array(prompts_at_once)


def step_times(
    deployments: Sequence[Deployment], make_step: Callable[[Deployment], Step], timers: StepTimers
) -> pd.DataFrame:
    """Return the times of each deployment's decode step; equal steps are timed once."""
    return _times_on(deployments, [d.system for d in deployments], make_step, timers)


def prefill_times(
    deployments: Sequence[Deployment], make_step: Callable[[Deployment], Step], timers: StepTimers
) -> pd.DataFrame:
    """Return the times of each deployment's prefill step, on the system that prefills."""
    return _times_on(deployments, [d.prefill_system for d in deployments], make_step, timers)


def _times_on(
    deployments: Sequence[Deployment],
    systems: Sequence[System],
    make_step: Callable[[Deployment], Step],
    timers: StepTimers,
) -> pd.DataFrame:
    """Return the times of each deployment's step on a system."""
    # Which deployments share a step?
    rows_of_step: dict[tuple[str, str], dict[Step, list[int]]] = {}
    for i, (deployment, system) in enumerate(zip(deployments, systems, strict=True)):
        rows = rows_of_step.setdefault((system.name, deployment.backend), {})
        rows.setdefault(make_step(deployment), []).append(i)

    # Time the steps of a system and an engine together, then repeat each for its deployments.
    parts = []
    for rows in rows_of_step.values():
        index = np.concatenate(list(rows.values()))
        timer = timers(systems[index[0]], deployments[index[0]].backend)
        times = timer.times(list(rows))
        step_of_row = np.repeat(np.arange(len(rows)), [len(shared) for shared in rows.values()])
        parts.append(times.iloc[step_of_row].set_axis(index, axis=0))
    return pd.concat(parts).sort_index() if parts else pd.DataFrame()


def _with_drafts(
    deployment: Deployment, layout: Layout, part: Part, draft_part: Part, draft_steps: int
) -> Step:
    """Return a step together with its drafter's step, if any."""
    step = Step(deployment.model, layout, deployment.formats, part)
    drafts = deployment.speculation
    if drafts is None:
        return step
    drafter = Step(
        drafts.drafter(step.model), drafts.layout(layout), drafts.formats(step.formats), draft_part
    )
    return replace(step, draft=drafter, draft_steps=draft_steps)
