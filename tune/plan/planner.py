"""The planner: every way to serve a model on some GPUs, predicted, and what limits the best.

Formats × layouts × requests in flight are few enough to be looked at one and all. What does not fit
memory is left out before anything is predicted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.search.pareto import pareto_front
from foretune.tune.plan.accuracy import recovery
from foretune.tune.plan.clocks import OperatorClocks
from foretune.tune.plan.correction import ServingCorrection
from foretune.tune.plan.deployment import Deployment
from foretune.tune.plan.description import ModelDescription
from foretune.tune.plan.formats import Formats, checkpoint_formats
from foretune.tune.plan.layout import legal_layouts
from foretune.tune.plan.memory import GIB, most_requests, rank_memory
from foretune.tune.plan.physics import physics
from foretune.tune.plan.serving import ServingModel, tokens_per_s
from foretune.tune.plan.system import System
from foretune.tune.plan.workload import Workload

CONCURRENCIES = tuple(2**i for i in range(11))
"""Requests in flight per replica that are looked at, as far as memory holds them."""
NOTES = (
    "pipeline parallelism (pp > 1) is predicted, but no deployment with it was ever measured",
    "power is not predicted: no measured deployment says it",
)


@dataclass(frozen=True)
class Wish:
    """What a plan must keep to.

    Attributes:
        ttft_ms: most milliseconds to the first token; infinite without a limit.
        tpot_ms: most milliseconds per further token.
        accuracy: least share of quality that formats keep, where published results say it.
    """

    ttft_ms: float = np.inf
    tpot_ms: float = np.inf
    accuracy: float = 0.0


@dataclass(frozen=True)
class Plan:
    """All candidates, and the best.

    Attributes:
        candidates: one row each: ``tp, pp, dp, ep, formats, replicas, batch`` (requests in flight
            of a replica), ``ttft_ms``, ``tpot_ms`` (with ``_low``, ``_high`` where measured
            deployments taught them), ``tokens_per_s_per_gpu``, ``memory_gib`` of a GPU,
            ``usd_per_million_tokens``, ``accuracy``, ``keeps`` (to the wish), ``pareto``,
            ``limited_by`` (a part of `LIMITS`).
        notes: what to know when reading them.
    """

    candidates: pd.DataFrame
    notes: tuple[str, ...] = field(default=NOTES)

    @property
    def best(self) -> pd.Series:
        """The candidate of most tokens per second and GPU that keeps to the wish.

        Raises:
            UsageError: none does; the message says what can be reached.
        """
        keeping = self.candidates[self.candidates["keeps"]]
        if keeping.empty:
            raise UsageError(_nearest(self.candidates))
        return keeping.loc[keeping["tokens_per_s_per_gpu"].idxmax()]

    @property
    def pareto(self) -> pd.DataFrame:
        """Candidates that no other beats in both tokens per GPU and time per token."""
        front = self.candidates[self.candidates["pareto"] & self.candidates["keeps"]]
        return front.sort_values("tpot_ms")


def plan(
    model: ModelDescription,
    system: System,
    gpus: int,
    workload: Workload,
    clocks: OperatorClocks,
    wish: Wish | None = None,
    backend: str = "vllm",
    formats: Sequence[Formats] | None = None,
    correction: ServingCorrection | None = None,
) -> Plan:
    """Predict every deployment of ``model`` on ``gpus`` GPUs of ``system``.

    Args:
        model: what is served.
        system: on which GPUs.
        gpus: how many; a layout of fewer is repeated as replicas.
        workload: lengths of the requests.
        clocks: say what operators take.
        wish: limits; None has none.
        backend: the engine.
        formats: to choose from; None takes what the GPU supports.
        correction: trained on measured deployments; None predicts by formulas, without intervals.

    Raises:
        UsageError: the model fits nowhere; the message says what it needs.
    """
    deployments = _deployments(model, system, gpus, workload, backend, formats)
    if not deployments:
        raise UsageError(_too_large(model, system, gpus, workload, formats))
    rows = physics(deployments, clocks)
    latencies = (correction or ServingModel()).predict(rows)
    table = pd.DataFrame([_described(d, gpus) for d in deployments]).join(latencies)
    replicas = table["replicas"].to_numpy(dtype=float)
    per_s = tokens_per_s(rows["concurrency"].to_numpy(), rows["osl"].to_numpy(), latencies)
    table["tokens_per_s_per_gpu"] = per_s * replicas / gpus
    price = system.price_per_hour
    hourly = np.nan if price is None else price * 1e6 / 3600
    table["usd_per_million_tokens"] = hourly / table["tokens_per_s_per_gpu"]
    table["limited_by"] = _limits(rows)
    table["keeps"] = _keeps(table, wish or Wish())
    values = np.column_stack([-table["tokens_per_s_per_gpu"], table["tpot_ms"]])
    table["pareto"] = pareto_front(values)
    return Plan(table)


def supported_formats(model: ModelDescription, system: System) -> list[Formats]:
    """Return the formats worth looking at: the checkpoint's own, and those the GPU multiplies."""
    own = checkpoint_formats(model)
    usual = [
        Formats(weights, kv=kv)
        for weights in ("bf16", "fp8", "fp8_block", "int8", "int4_wo", "nvfp4")
        for kv in ("bf16", "fp8")
    ]
    known = [f for f in usual if f.support(system.device.architecture) == "native"]
    return list(dict.fromkeys([own, *known]))


def _deployments(
    model: ModelDescription,
    system: System,
    gpus: int,
    workload: Workload,
    backend: str,
    formats: Sequence[Formats] | None,
) -> list[Deployment]:
    found = []
    for these in formats or supported_formats(model, system):
        for size in (n for n in range(1, gpus + 1) if gpus % n == 0):
            for layout in legal_layouts(model, size, these):
                if layout.dp > 1 and not model.is_moe:
                    continue  # several replicas: a smaller size says the same
                most = most_requests(model, layout, these, workload, system)
                found += [
                    Deployment(model, system, backend, layout, these, workload, n)
                    for n in CONCURRENCIES
                    if layout.dp <= n <= most
                ]
    return found


def _described(deployment: Deployment, gpus: int) -> dict[str, object]:
    layout, workload = deployment.layout, deployment.workload
    memory = rank_memory(
        deployment.model, layout, deployment.formats, workload, int(deployment.concurrency)
    )
    kept = recovery(deployment.formats, deployment.model)
    return {
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "ep": layout.moe_ep,
        "formats": str(deployment.formats),
        "replicas": gpus // layout.gpus,
        "batch": int(deployment.concurrency),
        "memory_gib": memory.total / GIB,
        "accuracy": np.nan if kept is None else kept,
    }


LIMITS = {
    "projections": "projections (bandwidth at small batches, compute at large)",
    "attention": "attention, reading the cache of keys and values (bandwidth)",
    "experts": "experts (bandwidth at small batches, compute at large)",
    "communication": "communication between GPUs",
    "rest": "small operators and overhead",
}
"""What the parts of a decode step wait for."""


def _limits(rows: pd.DataFrame) -> list[str]:
    """Return what most of a decode step goes to."""
    shares = rows[[f"share_{part}" for part in LIMITS]].to_numpy()
    return [list(LIMITS)[i] for i in np.argmax(np.nan_to_num(shares), axis=1)]


def _keeps(table: pd.DataFrame, wish: Wish) -> "pd.Series[bool]":
    quick = (table["ttft_ms"] <= wish.ttft_ms) & (table["tpot_ms"] <= wish.tpot_ms)
    good = ~(table["accuracy"] < wish.accuracy)  # nothing published breaks no floor
    return quick & good


def _nearest(table: pd.DataFrame) -> str:
    fastest = table.loc[table["tpot_ms"].idxmin()]
    first = table.loc[table["ttft_ms"].idxmin()]
    return (
        "no deployment keeps to the limits: the least time per token is "
        f"{fastest['tpot_ms']:.1f} ms, the least to the first token {first['ttft_ms']:.0f} ms"
    )


def _too_large(
    model: ModelDescription,
    system: System,
    gpus: int,
    workload: Workload,
    formats: Sequence[Formats] | None,
) -> str:
    least = min(
        (
            rank_memory(model, layout, these, workload, layout.dp).total / GIB
            for these in formats or supported_formats(model, system)
            for layout in legal_layouts(model, gpus, these)
        ),
        default=np.inf,
    )
    if not np.isfinite(least):
        return f"{model.name} cannot be spread over {gpus} GPUs in these formats: try other numbers"
    return (
        f"{model.name} fits nowhere on {gpus} × {system.name} ({system.memory_gib:.0f} GiB each): "
        f"a GPU needs at least {least:.0f} GiB; take more --gpus or smaller --formats"
    )
