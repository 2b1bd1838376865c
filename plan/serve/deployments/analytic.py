"""Step times, latencies and power of continuous batching, in closed form.

In steady state, each step generates one token per running request of a rank. Finished requests are
replaced, so ``(running - 1) / osl`` prompts of other requests are prefilled per step, up to the
step's token limit::

    TPOT = a·decode + b·communication + overhead + prompts · (c·prefill + d·communication)
    TPOT ≥ CPU time of a step
    TTFT = overhead + prompt + current step + earlier prompts + waiting for memory

If memory holds fewer requests than are in flight, the rest wait. By Little's law this takes
``(batch / most - 1)`` times as long as serving a request. `_max_wait_ms` bounds the time to first
token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import GIB, MAX_STEP_TOKENS, USABLE_SHARE, weight_bytes
from foretune.plan.cost.operator import Part
from foretune.plan.cost.steps import PARTS, OperatorPower, Step, StepTimer
from foretune.plan.describe import shipped_rows
from foretune.plan.describe.formats import base_format
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.system import System
from foretune.plan.engine.simulator import CUDA_GRAPH_SIZES, Host
from foretune.plan.serve.deployments.deployment import Deployment

WEIGHT_BITS = {"bf16": 16, "nvfp4": 4}
"""Weight format -> bits that the correction sees; others count as 8."""


class StepTimers(Protocol):
    """Times the steps of engines on systems, as `StepTimerFactory` does."""

    @property
    def has_tables(self) -> bool:
        """Whether times come from measured tables; if not, they are rooflines."""
        ...

    def __call__(self, system: System, backend: str) -> StepTimer:
        """Return the step timer of an engine on a system."""
        ...


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
    lengths.
    """
    rows = _load_independent_rows(deployments, timers)
    decode = _step_times(deployments, decode_step, timers)
    # A pipeline prefills one prompt per stage at a time.
    prompts = rows["prompts_per_step"] * np.array([d.prefill_layout.pp for d in deployments])
    batch = np.array([d.batch for d in deployments])
    host = np.array([_pipeline_host_ms(d) for d in deployments])
    # Accepted tokens share the time of their step.
    accepted_tokens = np.array([d.accepted_tokens for d in deployments])
    shares = {f"share_{part}": decode[part] / decode["total"] for part in PARTS}
    times = [name for name in rows if "." in name]
    result = rows.drop(columns=times).assign(
        batch=batch,
        running=np.minimum(batch, rows["most"]),
        concurrency=np.array([d.concurrency for d in deployments], dtype=float),
        decode=(decode["total"] + host) / accepted_tokens,
        host=host / accepted_tokens,
        decode_communication=decode["communication"] / accepted_tokens,
        alone=rows["alone.total"] / accepted_tokens,
        prompt=rows["prompt.total"],
        prefill=rows["full.total"] / prompts,
        prefill_communication=rows["full.communication"] / prompts,
        decode_energy_mj=decode["energy_mj"] / accepted_tokens,
        prefill_energy_mj=rows["full.energy_mj"] / prompts,
        decode_compute_bound=decode["compute_bound"],
        prefill_compute_bound=rows["full.compute_bound"],
        decode_bound=decode["bound"] / accepted_tokens,
        prefill_bound=rows["full.bound"] / prompts,
        energy_guessed=decode["energy_guessed"],
        guessed=decode["guessed"],
        share_host=0.0,
        fetch=0.0,
        **shares,
    )
    prompts_each = prompts_per_token(result)
    cpu = [_cpu_ms(d, n) for d, n in zip(deployments, prompts_each, strict=True)]
    result = result.assign(cpu=cpu / accepted_tokens)
    return _with_offload(result, deployments) if any(d.offload for d in deployments) else result


def _with_offload(rows: pd.DataFrame, deployments: Sequence[Deployment]) -> pd.DataFrame:
    """Return ``rows`` with the waits for host memory; GPUs draw active idle power meanwhile."""

    def weight_wait_ms(tokens: Callable[[Deployment], float]) -> np.ndarray:
        return np.array([d.weight_wait_ms(tokens(d)) for d in deployments])

    accepted_tokens = np.array([d.accepted_tokens for d in deployments])
    decode = weight_wait_ms(lambda d: _requests_per_step(d) * (1 + d.drafted)) / accepted_tokens
    prompts = np.array([_prompts_per_step(d) * d.prefill_layout.pp for d in deployments])
    full = weight_wait_ms(lambda d: _prompts_per_step(d) * d.workload.new_tokens) / prompts
    prompt = rows["prompt"] + weight_wait_ms(lambda d: d.workload.new_tokens)
    fetch = np.array([d.prefix_fetch_ms for d in deployments])
    total, prefill = rows["decode"] + decode, rows["prefill"] + full
    shares = {f"share_{part}": rows[f"share_{part}"] * rows["decode"] / total for part in PARTS}
    # Prefill is limited by the link if prefixes load more slowly than prompts are computed.
    prefix_delay = np.maximum(fetch - prefill, 0.0)
    return rows.assign(
        decode=total,
        alone=rows["alone"] + weight_wait_ms(lambda d: 1 + d.drafted) / accepted_tokens,
        prompt=prompt,
        prefill=prefill + prefix_delay,
        decode_energy_mj=rows["decode_energy_mj"] + decode * rows["awake_w"],
        prefill_energy_mj=rows["prefill_energy_mj"] + (full + prefix_delay) * rows["awake_w"],
        decode_compute_bound=rows["decode_compute_bound"] * rows["decode"] / total,
        prefill_compute_bound=rows["prefill_compute_bound"]
        * rows["prefill"]
        / (prefill + prefix_delay),
        guessed=(rows["guessed"] * rows["decode"] + decode) / total,
        share_host=decode / total,
        fetch=[d.exposed_fetch_ms(ms) for d, ms in zip(deployments, prompt, strict=True)],
        **shares,
    )


def _load_independent_rows(deployments: Sequence[Deployment], timers: StepTimers) -> pd.DataFrame:
    """Return the columns that do not depend on the load, computed once for equal deployments."""
    kinds: dict[tuple[object, ...], int] = {}
    kind = np.array(
        [kinds.setdefault(_load_independent_key(d), len(kinds)) for d in deployments], dtype=int
    )
    firsts = [deployments[i] for i in np.unique(kind, return_index=True)[1]]
    fixed = pd.DataFrame([_load_independent_columns(d) for d in firsts])
    single = partial(decode_step, requests=1)
    steps: Mapping[str, Callable[[Deployment], Step]]
    steps = {"alone": single, "prompt": prefill_step, "full": _full_prefill_step}
    for name, make in steps.items():
        fixed = fixed.join(_step_times(firsts, make, timers).add_prefix(f"{name}."))
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
        deployment.load,
        deployment.speculative,
        deployment.version,
        deployment.speculation,
        deployment.offload,
    )


def decode_ms(deployments: Sequence[Deployment], timers: StepTimers) -> np.ndarray:
    """Return the milliseconds of a decode step of each deployment."""
    return _step_times(deployments, decode_step, timers)["total"].to_numpy()


def prompt_ms(
    deployments: Sequence[Deployment], timers: StepTimers
) -> tuple[np.ndarray, np.ndarray]:
    """Return the milliseconds of a single prompt, and per prompt in full steps."""
    first_ms = _step_times(deployments, prefill_step, timers)["total"].to_numpy()
    full_ms = _step_times(deployments, _full_prefill_step, timers)["total"].to_numpy()
    at_once = [_prompts_per_step(d) * d.prefill_layout.dp for d in deployments]
    return first_ms, full_ms / np.array(at_once)


def _load_independent_columns(deployment: Deployment) -> dict[str, object]:
    layout, workload, model = deployment.layout, deployment.workload, deployment.model
    memory = USABLE_SHARE * deployment.system.memory_gib * GIB
    pools, readers, use = deployment.pools, 1.0, str(deployment.load)
    if pools:  # prefill groups per decode group; 0 if unknown
        groups = pools.prefill_workers * pools.prefill.dp
        readers, use = groups / (pools.decode_workers * layout.dp), "pools"
    return {
        "backend": deployment.backend,
        # The engine and its use: the group with a common set of coefficients.
        "use": f"{deployment.backend} {'speculative' if deployment.speculative else use}",
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
        "weights_share": (
            weight_bytes(model, layout, deployment.formats) - deployment.offloaded_weight_bytes
        )
        / memory,
        "weight_bits": float(WEIGHT_BITS.get(base_format(deployment.formats.weights), 8)),
        "bandwidth": deployment.system.device.specs.get("memory_gbps", np.nan),
        "prompts_per_step": float(_prompts_per_step(deployment)),
        "step_prompts": MAX_STEP_TOKENS / workload.new_tokens * deployment.prefill_layout.pp,
        "readers": readers,
        "prefill_tp": float(deployment.prefill_layout.tp),
        "awake_w": OperatorPower(deployment.system.device, deployment.system.name).active_idle_w,
    }


def _step_times(
    deployments: Sequence[Deployment], make_step: Callable[[Deployment], Step], timers: StepTimers
) -> pd.DataFrame:
    """Return the times of each deployment's step; equal steps are timed once."""
    by_system: dict[tuple[str, str], dict[Step, list[int]]] = {}
    for i, deployment in enumerate(deployments):
        step_rows = by_system.setdefault((deployment.system.name, deployment.backend), {})
        step_rows.setdefault(make_step(deployment), []).append(i)
    parts = []
    for steps in by_system.values():
        index = np.concatenate(list(steps.values()))
        first = deployments[index[0]]
        table = timers(first.system, first.backend).times(list(steps))
        step_of_row = np.repeat(np.arange(len(steps)), [len(rows) for rows in steps.values()])
        parts.append(table.iloc[step_of_row].set_axis(index, axis=0))
    return pd.concat(parts).sort_index() if parts else pd.DataFrame()


def decode_step(deployment: Deployment, requests: int = 0) -> Step:
    """Return a decode step of an attention-DP group through all pipeline stages.

    Each stage has its own batch. ``requests`` 0 means all running ones. With drafting, the step
    yields several tokens (`Deployment.accepted_tokens`).
    """
    batch = requests or _requests_per_step(deployment)
    context = int(deployment.workload.mean_context)
    part = Part(batch, 1 + deployment.drafted, context, "decode")
    draft = Part(batch, 1, context, "decode")
    return _with_drafts(deployment, deployment.layout, part, draft, deployment.drafted)


def prefill_step(deployment: Deployment, prompts: int = 1) -> Step:
    """Return the prefill step of ``prompts`` prompts."""
    part = Part(prompts, deployment.workload.new_tokens, deployment.workload.prefix, "prefill")
    return _with_drafts(deployment, deployment.prefill_layout, part, part, 1)


def _full_prefill_step(deployment: Deployment) -> Step:
    return prefill_step(deployment, _prompts_per_step(deployment))


def _with_drafts(
    deployment: Deployment, layout: Layout, part: Part, draft: Part, draft_steps: int
) -> Step:
    """Return a step together with its drafter's step, if any."""
    step, drafts = Step(deployment.model, layout, deployment.formats, part), deployment.speculation
    if drafts is None:
        return step
    drafter = Step(
        drafts.drafter(step.model), drafts.layout(layout), drafts.formats(step.formats), draft
    )
    return replace(step, draft=drafter, draft_steps=draft_steps)


def _requests_per_step(deployment: Deployment) -> int:
    """Return the requests of an attention-DP group in one decode step."""
    return max(int(deployment.running / deployment.layout.pp), 1)


def _prompts_per_step(deployment: Deployment) -> int:
    return max(round(MAX_STEP_TOKENS / deployment.workload.new_tokens), 1)


def _cpu_ms(deployment: Deployment, prompts: float) -> float:
    """Return the CPU time of a step with ``prompts`` prompts, a lower bound of the step's time.

    For a pipeline, the step already includes it.
    """
    if deployment.layout.pp > 1:
        return MIN_MS
    host, running = Host.for_system(deployment.system), int(deployment.running)
    tokens = round(prompts * deployment.workload.new_tokens)
    launched = deployment.model.layers if running > CUDA_GRAPH_SIZES[-1] else 0
    return host.step_time_ms(0.0, running + round(prompts), tokens, running, launched)


def _pipeline_host_ms(deployment: Deployment) -> float:
    """Return the CPU time that a pipeline adds; without a pipeline, GPU work hides it."""
    stages = deployment.layout.pp
    if stages == 1:
        return 0.0
    host, running = Host.for_system(deployment.system, stages), int(deployment.running)
    return stages * host.step_time_ms(0.0, max(running // stages, 1), 0, running, 0)


TPOT_COEFFICIENTS = np.array([1.0, 1.9, 0.035, 1.0, 0.65])
TTFT_COEFFICIENTS = {
    row.pop("use"): [float(value) for value in row.values()]
    for row in shipped_rows("ttft.csv", "foretune.plan.serve.deployments")
}
"""Engine and kind of load, or ``other`` -> coefficients. Those of the time per token are equal for
all, and fitted to the same deployments."""
MIN_MS = 1e-9
OVERHEAD_MS = 20.0
QUEUE_SHARE = 0.1
"""Scales of terms, so that their coefficients are near one."""
TOKENS_PER_DRAFTED_STEP = 1.5
"""Tokens per step with one drafted token, over the relative time of such a step.

DeepSeek reports 1.8 tokens (arXiv:2412.19437, section 5.4.3).
"""


def formula_latencies(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``tpot_ms`` and ``ttft_ms`` of deployments; ``rows`` come from `analytic_times`."""
    tpot = np.maximum(_tpot_terms(rows) @ TPOT_COEFFICIENTS, rows["cpu"])
    memory_wait = memory_wait_ms(rows, tpot)
    other = TTFT_COEFFICIENTS["other"]
    coefficients = [TTFT_COEFFICIENTS.get(use, other) for use in rows["use"]]
    terms = _ttft_terms(rows, tpot) * np.array(coefficients).reshape(len(rows), len(other))
    ttft = np.maximum(terms.sum(axis=1) + memory_wait, MIN_MS)
    ttft = np.minimum(ttft, memory_wait + _max_wait_ms(rows))
    return pd.DataFrame({"tpot_ms": tpot, "ttft_ms": ttft}, index=rows.index)


def tokens_per_s(concurrency: np.ndarray, osl: np.ndarray, latencies: pd.DataFrame) -> np.ndarray:
    """Return generated tokens per second with ``concurrency`` requests in flight."""
    request_ms = latencies["ttft_ms"] + latencies["tpot_ms"] * np.maximum(osl - 1, 0)
    return np.asarray(1e3 * concurrency * osl / request_ms)


def prompts_per_token(rows: pd.DataFrame) -> np.ndarray:
    """Return how many other prompts a rank prefills per step; 0 with a prefill pool."""
    others = np.minimum((rows["running"] - 1.0).clip(0.0) / rows["osl"], rows["step_prompts"])
    return np.asarray(others * (1.0 - rows["apart"]))


def memory_wait_ms(rows: pd.DataFrame, tpot_ms: np.ndarray) -> np.ndarray:
    """Return how long a request waits for free cache memory."""
    excess = np.maximum(rows["batch"] / rows["most"] - 1.0, 0.0)
    return np.asarray(excess * rows["osl"] * tpot_ms)


def _max_wait_ms(rows: pd.DataFrame) -> np.ndarray:
    """Return a generous upper bound of the time to first token, with all others ahead."""
    steps = 5.0 + np.sqrt(rows["running"])
    demand = rows["running"] / rows["osl"] * rows["prefill"] / rows["decode"]
    others = (rows["running"] - 1.0).clip(0.0) * rows["prefill"] / _prefill_groups(rows, demand)
    return np.asarray(2.0 * (OVERHEAD_MS + rows["prompt"] + steps * rows["decode"] + others))


def apply_prefill_limit(rows: pd.DataFrame, latencies: pd.DataFrame) -> pd.DataFrame:
    """Return latencies raised to the rate at which prompts can be prefilled.

    By Little's law, a request takes at least as long as prefilling all requests in flight.
    ``latencies`` has ``ttft_ms`` and ``tpot_ms``, with ``_low`` and ``_high`` if known.
    """
    demand = rows["running"] / rows["osl"] * rows["prefill"] / latencies["tpot_ms"]
    read_all_ms = rows["running"] * rows["prefill"] / _prefill_groups(rows, demand)
    min_ttft_ms = read_all_ms - (rows["osl"] - 1.0) * latencies["tpot_ms"]
    factor = np.maximum(min_ttft_ms / latencies["ttft_ms"], 1.0)
    columns = [name for name in latencies if name.startswith("ttft_ms")]
    return latencies.assign(**{name: latencies[name] * factor for name in columns})


def _prefill_groups(rows: pd.DataFrame, demand: "pd.Series[float]") -> "pd.Series[float]":
    """Return prefill groups per decode group; if unknown, as many as are needed."""
    return rows["readers"].where(rows["readers"] > 0, np.ceil(demand).clip(1.0))


def _tpot_terms(rows: pd.DataFrame) -> np.ndarray:
    prompts = prompts_per_token(rows)
    terms = np.stack(
        [
            rows["decode"] - rows["decode_communication"],
            rows["decode_communication"],
            np.ones(len(rows)),
            prompts * (rows["prefill"] - rows["prefill_communication"]),
            prompts * rows["prefill_communication"],
        ],
        axis=1,
    )
    tokens_per_step = np.where(rows["speculative"] > 0, TOKENS_PER_DRAFTED_STEP, 1.0)
    terms[:, :3] /= tokens_per_step[:, None]
    return terms


def _ttft_terms(rows: pd.DataFrame, tpot_ms: np.ndarray) -> np.ndarray:
    running = np.asarray(rows["running"])
    demand = rows["running"] / rows["osl"] * rows["prefill"] / tpot_ms
    groups = _prefill_groups(rows, demand)
    queue = running * rows["prefill"] / groups
    return np.stack(
        [
            np.full(len(rows), OVERHEAD_MS),
            rows["prompt"],
            tpot_ms,
            QUEUE_SHARE * queue,
            queue * np.clip(demand / groups, 0.0, 1.0),  # the utilization of the groups
            # The interval at which a running request finishes.
            rows["osl"] * tpot_ms / running,
            np.sqrt(running) * tpot_ms,
        ],
        axis=1,
    )


UNMODELED_ACTIVE_SHARE = 0.6
"""Active share of the time outside the modeled operators: sampling, uneven batches, copies.

With 0, four GPUs measured by ML.ENERGY (v3.0, vLLM, in
huggingface.co/datasets/leadgreen/green-token-index) would draw a third less than measured; with 1,
from 15 % less to 39 % more (`benchmarks/plan_power.py`).
"""


def deployment_power(rows: pd.DataFrame, latencies: pd.DataFrame) -> pd.DataFrame:
    """Return the power of deployments, from `analytic_times` and predicted latencies.

    While its operators run, a GPU draws their power. In the rest of a step it is partly active and
    partly idle but awake.

    ``power_w`` is a GPU's mean including waits. ``decode_power_w`` and ``prefill_power_w`` are
    those of a GPU without waits. ``prefill_share`` is a share of the busy time.
    ``energy_mj_per_token`` is that of all GPUs per generated token, including prompts.
    """
    # A decode group produces one token per request and step; a prefill group, one prompt.
    per_step = (
        rows["running"]
        * np.where(rows["speculative"] > 0, TOKENS_PER_DRAFTED_STEP, 1.0)
        / rows["tp"]
    )
    per_prompt = rows["osl"] / rows["prefill_tp"]
    decode_ms = rows["decode"] / per_step
    prefill_ms = rows["prefill"] / per_prompt
    energy_mj = rows["decode_energy_mj"] / per_step + rows["prefill_energy_mj"] / per_prompt
    per_s = tokens_per_s(rows["concurrency"].to_numpy(), rows["osl"].to_numpy(), latencies)
    # Operators that run faster than predicted draw the same power for a shorter time.
    stages = rows["pp"]
    busy_share = np.minimum(per_s * (decode_ms + prefill_ms) * stages / (1e3 * rows["gpus"]), 1.0)
    active_share = busy_share + UNMODELED_ACTIVE_SHARE * (1.0 - busy_share)
    active_share *= np.minimum(rows["running"] / stages, 1.0)  # a batch in each stage
    power = (
        active_share * energy_mj / (decode_ms + prefill_ms) + (1.0 - active_share) * rows["awake_w"]
    )
    return pd.DataFrame(
        {
            "power_w": power,
            "decode_power_w": rows["decode_energy_mj"] / rows["decode"],
            "prefill_power_w": rows["prefill_energy_mj"] / rows["prefill"],
            "prefill_share": prefill_ms / (decode_ms + prefill_ms),
            "energy_mj_per_token": 1e3 * power * rows["gpus"] / per_s,
        }
    )
