"""The physics of deployments: what their steps take, and how many requests share them."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from foretune.tune.plan.deployment import Deployment
from foretune.tune.plan.layout import Layout
from foretune.tune.plan.memory import GIB, STEP_TOKENS, USABLE, weight_bytes
from foretune.tune.plan.steps import PARTS, Step, StepClock
from foretune.tune.plan.system import System

Clocks = Callable[[System, str], StepClock]
"""Gives the clock of an engine on a system."""


def physics(deployments: Sequence[Deployment], clocks: Clocks) -> pd.DataFrame:
    """Return one row per deployment: numbers that its latencies follow from.

    Columns (times in milliseconds): ``batch``, ``running`` and ``most`` requests per rank;
    ``decode``, ``decode_communication`` and the shares of a decode step's parts; ``alone``, a
    decode step of one request; ``prompt``, one prompt by itself; ``prefill`` and
    ``prefill_communication``, what a prompt adds to a full step; ``per_token``, prompts per
    generated token; ``guessed``; and the degrees and lengths.
    """
    times = pd.DataFrame(index=range(len(deployments)))
    for name, make in (
        ("decode", _decode),
        ("alone", _alone),
        ("prompt", _prompt),
        ("full", _full),
    ):
        table = _times(deployments, make, clocks)
        times = times.join(table.add_prefix(f"{name}."))
    rows = pd.DataFrame([_numbers(d) for d in deployments])
    prompts = rows["prompts_per_step"]
    shares = {f"share_{part}": times[f"decode.{part}"] / times["decode.total"] for part in PARTS}
    return rows.assign(
        decode=times["decode.total"],
        decode_communication=times["decode.communication"],
        alone=times["alone.total"],
        prompt=times["prompt.total"],
        prefill=times["full.total"] / prompts,
        prefill_communication=times["full.communication"] / prompts,
        guessed=times["decode.guessed"],
        width=times["decode.width"],
        **shares,
    )


def _numbers(deployment: Deployment) -> dict[str, object]:
    layout, workload, model = deployment.layout, deployment.workload, deployment.model
    memory = USABLE * deployment.system.memory_gib * GIB
    return {
        "backend": deployment.backend,
        "use": _use(deployment),
        "system": deployment.system.name,
        "generation": deployment.system.device.architecture,
        "model": deployment.architecture,
        "formats": str(deployment.formats),
        "layout": str(layout),
        "load": deployment.load,
        "apart": float(deployment.pools is not None),
        "speculative": float(deployment.speculative),
        "batch": deployment.batch,
        "running": deployment.running,
        "most": deployment.most,
        "concurrency": float(deployment.concurrency),
        "isl": float(workload.isl),
        "osl": float(workload.osl),
        "layers": float(model.layers),
        "tp": float(layout.tp),
        "dp": float(layout.dp),
        "moe_tp": float(layout.moe_tp),
        "moe_ep": float(layout.moe_ep),
        "is_moe": float(model.is_moe),
        "is_latent": float(model.mla is not None),
        "weights_share": weight_bytes(model, layout, deployment.formats) / memory,
        "weight_bits": float({"bf16": 16, "nvfp4": 4}.get(deployment.formats.weights, 8)),
        "bandwidth": deployment.system.device.specs.get("memory_gbps", np.nan),
        "prompts_per_step": float(_prompts(deployment)),
        "prefill_workers": float(_prefill_workers(deployment)),
    }


def _use(deployment: Deployment) -> str:
    """Return the engine and how it is used: what has coefficients of its own."""
    use: str = "pools" if deployment.pools else deployment.load
    return f"{deployment.backend} {'speculative' if deployment.speculative else use}"


def _times(
    deployments: Sequence[Deployment], make: Callable[[Deployment], Step], clocks: Clocks
) -> pd.DataFrame:
    """Return the times of one step of each deployment, made by ``make``."""
    steps = [make(deployment) for deployment in deployments]
    place = pd.Series([f"{d.system.name} {d.backend}" for d in deployments], dtype=str)
    parts = []
    for index in place.groupby(place).indices.values():
        first = deployments[index[0]]
        table = clocks(first.system, first.backend).times([steps[i] for i in index])
        parts.append(table.set_axis(index, axis=0))
    return pd.concat(parts).sort_index() if parts else pd.DataFrame()


def _decode(deployment: Deployment) -> Step:
    return _decode_of(deployment, max(int(deployment.running), 1))


def _alone(deployment: Deployment) -> Step:
    return _decode_of(deployment, 1)


def _decode_of(deployment: Deployment, batch: int) -> Step:
    context = int(deployment.workload.mean_context)
    return Step(
        deployment.model, deployment.layout, deployment.formats, batch, 1, context, "decode"
    )


def _prompt(deployment: Deployment) -> Step:
    return _prefill_of(deployment, 1)


def _full(deployment: Deployment) -> Step:
    return _prefill_of(deployment, _prompts(deployment))


def _prefill_of(deployment: Deployment, batch: int) -> Step:
    workload = deployment.workload
    return Step(
        deployment.model, _prefill_layout(deployment), deployment.formats, batch,
        workload.new_tokens, workload.prefix, "prefill",
    )  # fmt: skip


def _prompts(deployment: Deployment) -> int:
    """Return how many prompts fill a step."""
    return max(round(STEP_TOKENS / deployment.workload.new_tokens), 1)


def _prefill_layout(deployment: Deployment) -> Layout:
    return deployment.pools.prefill if deployment.pools else deployment.layout


def _prefill_workers(deployment: Deployment) -> int:
    return deployment.pools.prefill_workers if deployment.pools else 1
