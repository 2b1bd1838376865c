"""The inputs of a deployment's latency formulas: times of its steps, and facts that do not vary.

Most deployments of a plan differ only in their load, so everything else is computed once for all
of them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import GIB, MAX_STEP_TOKENS, USABLE_SHARE, weight_bytes
from foretune.plan.cost.power import OperatorPower
from foretune.plan.cost.steps import PARTS, Step
from foretune.plan.describe.formats import base_format
from foretune.plan.describe.system import System
from foretune.plan.engine.host import CUDA_GRAPH_SIZES, Host
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.deployment_steps import (
    StepTimers,
    decode_step,
    full_prefill_step,
    prefill_step,
    prefill_times,
    prompts_per_step,
    requests_per_step,
    step_times,
)
from foretune.plan.serve.deployments.latency_formulas import MIN_MS, prompts_per_token

WEIGHT_BITS = {"bf16": 16, "nvfp4": 4}
OTHER_WEIGHT_BITS = 8
"""Weight format -> bits that corrections see."""


def analytic_times(deployments: Sequence[Deployment], timers: StepTimers) -> pd.DataFrame:
    """Return one row per deployment: the inputs of its latency formulas.

    Times are in milliseconds. Requests per rank: ``batch``, ``running`` and ``most`` (that fit).
    Decode step: ``decode`` (including ``host``, the CPU time added to it), ``cpu`` (CPU time of a
    step with its prompts, which bounds the time per token), ``decode_communication``, the shares of
    its parts, ``alone`` (a step of one request). Prefill: ``prompt`` (one prompt alone),
    ``prefill`` and ``prefill_communication`` (what a prompt adds to a full step).
    ``decode_energy_mj`` and ``prefill_energy_mj`` are the energies of one rank. ``…_compute_bound``
    is the compute-bound share, ``…_bound`` the roofline time. ``guessed`` and ``energy_guessed``
    are extrapolated shares. With offloading: ``share_host`` (share of a decode step waiting for
    weights; included in the times and in ``guessed``) and ``fetch`` (wait for a prefix).
    ``step_prompts`` is the number of prompts that fit in a step. The rest are parallel degrees and
    lengths. With prefill on another kind of GPU, ``fetch`` is the wait for a prompt's cache.
    """
    fixed = _load_independent_rows(deployments, timers)
    decode = step_times(deployments, decode_step, timers)

    # A pipeline prefills one prompt per stage at a time.
    prompts = fixed["prompts_per_step"] * np.array([d.prefill_layout.pp for d in deployments])
    batch = np.array([d.batch for d in deployments])
    host_ms = np.array([_added_host_ms(d) for d in deployments])
    received_ms = np.array([Host.for_system(d.prefill_system).prompt_ms for d in deployments])
    # Accepted tokens share the time of their step.
    accepted_tokens = np.array([d.accepted_tokens for d in deployments])
    shares = {f"share_{part}": decode[part] / decode["total"] for part in PARTS}

    step_columns = [name for name in fixed if "." in name]
    rows = fixed.drop(columns=step_columns).assign(
        batch=batch,
        running=np.minimum(batch, fixed["most"]),
        concurrency=np.array([d.concurrency for d in deployments], dtype=float),
        decode=(decode["total"] + host_ms) / accepted_tokens,
        host=host_ms / accepted_tokens,
        decode_communication=decode["communication"] / accepted_tokens,
        alone=fixed["alone.total"] / accepted_tokens,
        prompt=fixed["prompt.total"] + received_ms,
        prefill=fixed["full.total"] / prompts + received_ms,
        prefill_communication=fixed["full.communication"] / prompts,
        decode_energy_mj=decode["energy_mj"] / accepted_tokens,
        prefill_energy_mj=fixed["full.energy_mj"] / prompts,
        decode_compute_bound=decode["compute_bound"],
        prefill_compute_bound=fixed["full.compute_bound"],
        decode_bound=decode["bound"] / accepted_tokens,
        prefill_bound=fixed["full.bound"] / prompts,
        energy_guessed=decode["energy_guessed"],
        guessed=decode["guessed"],
        share_host=0.0,
        fetch=np.array([d.handover_ms for d in deployments]),
        **shares,
    )

    prompts_of_step = prompts_per_token(rows)
    cpu_ms = [_cpu_ms(d, n) for d, n in zip(deployments, prompts_of_step, strict=True)]
    rows = rows.assign(cpu=cpu_ms / accepted_tokens)
    if any(deployment.offload for deployment in deployments):
        return _with_offload(rows, deployments)
    return rows


def _with_offload(rows: pd.DataFrame, deployments: Sequence[Deployment]) -> pd.DataFrame:
    """Return ``rows`` with the waits for host memory; GPUs draw active idle power meanwhile."""

    def weight_wait_ms(tokens: Callable[[Deployment], float]) -> np.ndarray:
        return np.array([d.weight_wait_ms(tokens(d)) for d in deployments])

    # What a decode step, a prompt of a full step and a prompt alone wait for weights.
    accepted_tokens = np.array([d.accepted_tokens for d in deployments])
    decode_wait = weight_wait_ms(lambda d: requests_per_step(d) * (1 + d.drafted)) / accepted_tokens
    prompts = np.array([prompts_per_step(d) * d.prefill_layout.pp for d in deployments])
    full_wait = weight_wait_ms(lambda d: prompts_per_step(d) * d.workload.new_tokens) / prompts
    alone_wait = weight_wait_ms(lambda d: 1 + d.drafted) / accepted_tokens
    decode = rows["decode"] + decode_wait
    prefill = rows["prefill"] + full_wait
    prompt = rows["prompt"] + weight_wait_ms(lambda d: d.workload.new_tokens)

    # Prefill is limited by the link or the disk if prefixes come more slowly than prompts are
    # computed.
    fetch_ms = np.array([max(d.prefix_fetch_ms, d.disk_ms_per_prompt) for d in deployments])
    prefix_delay = np.maximum(fetch_ms - prefill, 0.0)
    limited_prefill = prefill + prefix_delay
    exposed_fetch_ms = [
        d.exposed_fetch_ms(prompt_ms) for d, prompt_ms in zip(deployments, prompt, strict=True)
    ]

    # Waiting is no part of a step, and not bound by compute.
    shares = {f"share_{part}": rows[f"share_{part}"] * rows["decode"] / decode for part in PARTS}
    prefill_bound = rows["prefill_compute_bound"] * rows["prefill"] / limited_prefill
    return rows.assign(
        decode=decode,
        alone=rows["alone"] + alone_wait,
        prompt=prompt,
        prefill=limited_prefill,
        decode_energy_mj=rows["decode_energy_mj"] + decode_wait * rows["awake_w"],
        prefill_energy_mj=rows["prefill_energy_mj"] + (full_wait + prefix_delay) * rows["awake_w"],
        decode_compute_bound=rows["decode_compute_bound"] * rows["decode"] / decode,
        prefill_compute_bound=prefill_bound,
        guessed=(rows["guessed"] * rows["decode"] + decode_wait) / decode,
        share_host=decode_wait / decode,
        fetch=exposed_fetch_ms,
        **shares,
    )


def _load_independent_rows(deployments: Sequence[Deployment], timers: StepTimers) -> pd.DataFrame:
    """Return the columns that do not depend on the load, computed once for equal deployments."""
    # Number the deployments that differ in more than their load.
    number_of_key: dict[tuple[object, ...], int] = {}
    numbers = [
        number_of_key.setdefault(_load_independent_key(d), len(number_of_key)) for d in deployments
    ]
    kind = np.array(numbers, dtype=int)
    _, first_rows = np.unique(kind, return_index=True)
    firsts = [deployments[i] for i in first_rows]

    fixed = pd.DataFrame([_load_independent_columns(d) for d in firsts])
    alone = step_times(firsts, partial(decode_step, requests=1), timers)
    fixed = fixed.join(alone.add_prefix("alone."))
    prefill_steps: Mapping[str, Callable[[Deployment], Step]] = {
        "prompt": prefill_step,
        "full": full_prefill_step,
    }
    for name, make_step in prefill_steps.items():
        times = prefill_times(firsts, make_step, timers)
        fixed = fixed.join(times.add_prefix(f"{name}."))
    return fixed.iloc[kind].reset_index(drop=True)


def _load_independent_key(deployment: Deployment) -> tuple[object, ...]:
    """Return everything that defines a deployment except its load."""
    return (
        deployment.model,
        deployment.system.name,
        deployment.backend,
        deployment.layout,
        deployment.formats,
        deployment.workload,
        deployment.pools,
        deployment.prefill_system.name,
        deployment.load,
        deployment.speculative,
        deployment.version,
        deployment.speculation,
        deployment.offload,
    )


def _load_independent_columns(deployment: Deployment) -> dict[str, object]:
    """Return the columns of a deployment that do not depend on its load."""
    layout = deployment.layout
    workload = deployment.workload
    model = deployment.model
    pools = deployment.pools

    use = str(deployment.load)
    prefill_groups_per_decode_group = 1.0
    if pools:
        use = "pools"
        prefill_groups = pools.prefill_workers * pools.prefill.dp  # 0 if unknown
        prefill_groups_per_decode_group = prefill_groups / (pools.decode_workers * layout.dp)
    if deployment.speculative:
        use = "speculative"

    usable_bytes = USABLE_SHARE * deployment.system.memory_gib * GIB
    weights_on_gpu = (
        weight_bytes(model, layout, deployment.formats) - deployment.offloaded_weight_bytes
    )
    weights = base_format(deployment.formats.weights)
    awake_w = deployment.mean_of_gpus(
        decode=_active_idle_w(deployment.system), prefill=_active_idle_w(deployment.prefill_system)
    )
    return {
        "backend": deployment.backend,
        # The engine and its use: the group with a common set of coefficients.
        "use": f"{deployment.backend} {use}",
        "system": deployment.system.name,
        "generation": deployment.system.device.architecture,
        "model": deployment.architecture,
        "formats": str(deployment.formats),
        "layout": str(layout),
        "load": deployment.load,
        "version": deployment.version,
        "apart": float(deployment.pools is not None),
        "speculative": float(deployment.speculative),
        "most": deployment.max_batch,
        "isl": float(workload.isl),
        "osl": float(workload.osl),
        "gpus": float(deployment.gpus),
        **{name: float(degree) for name, degree in vars(layout).items()},
        "is_moe": float(model.is_moe),
        "is_latent": float(model.mla is not None),
        "weights_share": weights_on_gpu / usable_bytes,
        "weight_bits": float(WEIGHT_BITS.get(weights, OTHER_WEIGHT_BITS)),
        "bandwidth": deployment.system.device.specs.get("memory_gbps", np.nan),
        "prompts_per_step": float(prompts_per_step(deployment)),
        "step_prompts": MAX_STEP_TOKENS / workload.new_tokens * deployment.prefill_layout.pp,
        "readers": prefill_groups_per_decode_group,
        "prefill_tp": float(deployment.prefill_layout.tp),
        "awake_w": awake_w,
    }


def _active_idle_w(system: System) -> float:
    """Return the watts of a GPU that waits, but is awake."""
    return OperatorPower(system.device, system.name).active_idle_w


def _cpu_ms(deployment: Deployment, prompts: float) -> float:
    """Return the CPU time of a step with ``prompts`` prompts, a lower bound of the step's time.

    For a pipeline, the step already includes it.
    """
    if deployment.layout.pp > 1:
        return MIN_MS
    host = Host.for_system(deployment.system)
    running = int(deployment.running)
    uses_graph = running <= CUDA_GRAPH_SIZES[-1]
    return host.step_time_ms(
        0.0,
        requests=running + round(prompts),
        tokens=round(prompts * deployment.workload.new_tokens),
        active=running,
        launched=0 if uses_graph else deployment.model.layers,
        prompts=prompts,
    )


def _added_host_ms(deployment: Deployment) -> float:
    """Return the CPU time that a pipeline, or a model on the CPU, adds; else GPU work hides it."""
    stages = deployment.layout.pp
    if stages == 1 and deployment.system.device.kind != "cpu":
        return 0.0
    host = Host.for_system(deployment.system, stages)
    running = int(deployment.running)
    requests_of_stage = max(running // stages, 1)
    return stages * host.step_time_ms(
        0.0, requests=requests_of_stage, tokens=0, active=running, launched=0
    )
