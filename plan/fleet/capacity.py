"""Demand on a fleet, and requests per second that an instance sustains within latency limits.

An instance is rented as a whole and serves with one layout and one format. Only the number of
requests in flight follows the randomly arriving requests.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from foretune.errors import RunTableError, UsageError
from foretune.plan.describe.accuracy import recovery
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout, Workload, divisors
from foretune.plan.describe.lengths import MAX_TOKENS
from foretune.plan.describe.system import System
from foretune.plan.engine.requests import read_numbers
from foretune.plan.serve.arrivals import LoadCurve
from foretune.plan.serve.candidates import candidate_deployments, one_pool_candidates, predict
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.deployment_steps import StepTimers
from foretune.plan.serve.request import PlanRequest
from foretune.plan.serve.requirements import Requirements

HOST_W = (6500 - 8 * 400) / 8
"""Watts per GPU of a server besides its GPUs: from NVIDIA's DGX A100 data sheet (6.5 kW with eight
GPUs of 400 W)."""

COLUMNS = ("isl", "osl", "requests_per_s")
"""Columns of a table of requests."""


@dataclass(frozen=True)
class Demand:
    """Requests of one length; ``per_s`` arrive per second."""

    workload: Workload
    per_s: float

    def __str__(self) -> str:
        return f"{self.workload.isl}+{self.workload.osl} tokens"


def read_requests(path: str | os.PathLike[str]) -> list[Demand]:
    """Return the demands in a CSV or Parquet file with columns ``isl, osl, requests_per_s``.

    Rows of one length are summed; zero rates are dropped. Raises RunTableError if the file cannot
    be read, lacks a column, or has an invalid row.
    """
    numbers = read_numbers(path, COLUMNS, "a table of requests")
    for i, row in enumerate(numbers.to_dict("records"), 1):
        if error := _row_error(row):
            raise RunTableError(f"{path}, row {i}: {error}")
    per_s = numbers.groupby(["isl", "osl"])["requests_per_s"].sum()
    found = [Demand(Workload(int(i), int(o)), float(r)) for (i, o), r in per_s.items() if r]
    if not found:
        raise RunTableError(f"{path} has no requests: add rows of {', '.join(COLUMNS)}")
    return found


def _row_error(row: Mapping[str, float]) -> str:
    """Return what is wrong with a row; empty if it is valid."""
    for name in ("isl", "osl"):
        if not (row[name] >= 1 and row[name] == np.floor(row[name]) < MAX_TOKENS):
            return f"{name} must be a whole number of tokens, at least 1"
    if not 0 <= row["requests_per_s"] < np.inf:
        return "requests_per_s must be a number, 0 or more"
    return ""


@dataclass(frozen=True)
class InstanceType:
    """GPUs rented together, and how a model is served on them."""

    system: str
    gpus: int
    layout: Layout  # of one replica
    formats: Formats
    usd_per_hour: float  # price of the instance
    power_w: float  # provisioned watts: GPUs at their boards' limits, and the host
    rates: tuple[float, ...]  # per length, the most requests per second of which 90 % keep limits
    in_flight: tuple[float, ...]  # mean requests in flight per replica at these rates

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return self.gpus // self.layout.gpus


def instance_types(
    model: ModelDescription,
    systems: Sequence[System],
    sizes: Sequence[int],
    demands: Sequence[Demand],
    timers: StepTimers,
    requirements: Requirements | None = None,
    backend: str = "vllm",
    formats: Sequence[Formats] | None = None,
    on_system: Callable[[str], None] = lambda name: None,
) -> list[InstanceType]:
    """Return the rentable types and their sustained rates, without dominated ones.

    Raises UsageError if a system has no price, or no instance serves one of the demands; the
    message suggests a fix. ``systems`` need prices; ``sizes`` are GPUs per instance. Without
    ``formats``, those that each GPU supports are tried. ``on_system`` is called with each system's
    name before its prediction.
    """
    for system in systems:
        if system.price_per_hour is None:
            raise UsageError(f"{system.name} has no price: add one with --prices FILE")
    requirements = requirements or Requirements()
    instances: list[InstanceType] = []
    tables: list[pd.DataFrame] = []
    for system in systems:
        on_system(system.name)
        request = PlanRequest(
            model=model,
            systems=(system,),
            gpus=1,
            workload=demands[0].workload,
            engine=backend,
            formats=tuple(formats) if formats else None,
        )
        replicas: list[Deployment] = []
        demand_of_replica: list[int] = []
        for number, demand in enumerate(demands):
            of_demand = _replicas(request, sizes, demand, requirements)
            replicas += of_demand
            demand_of_replica += len(of_demand) * [number]
        if replicas:
            setups = [(replica.layout, replica.formats) for replica in replicas]
            table = predict(replicas, timers).assign(setup=setups, demand=demand_of_replica)
            tables.append(table)
            instances += _instance_types(system, sizes, table, demands, requirements)

    for number, demand in enumerate(demands):
        if not any(instance.rates[number] > 0 for instance in instances):
            raise UsageError(_unserved_message(demand, number, tables, requirements, sizes))
    return pareto_instances(instances)


def _replicas(
    request: PlanRequest, sizes: Sequence[int], demand: Demand, requirements: Requirements
) -> list[Deployment]:
    """Return single replicas for a demand, in every layout and load, that keep enough quality."""
    (system,) = request.systems
    replica_sizes = sorted({size for gpus in sizes for size in divisors(gpus)})
    replicas: list[Deployment] = []
    for gpus in replica_sizes:
        sized = replace(request, gpus=gpus, workload=demand.workload)
        for deployment in candidate_deployments(sized, system):
            kept_quality = recovery(deployment.formats, request.model) or 0.0
            if deployment.replicas == 1 and kept_quality >= requirements.accuracy:
                replicas += one_pool_candidates([deployment])
    return replicas


def _instance_types(
    system: System,
    sizes: Sequence[int],
    table: pd.DataFrame,
    demands: Sequence[Demand],
    requirements: Requirements,
) -> Iterator[InstanceType]:
    """Yield the types with their highest rates, and the requests in flight at them."""
    for (layout, formats), rows in table.groupby("setup", sort=False):
        rates = np.zeros(len(demands))
        in_flight = np.zeros(len(demands))
        for number, loads in rows.groupby("demand"):
            curve = LoadCurve(loads, demands[number].workload.osl, requirements)
            rate = curve.goodput()
            if load := curve.at(rate):
                rates[number] = rate
                in_flight[number] = load.in_flight
        if not rates.any():
            continue
        for gpus in sizes:
            if gpus % layout.gpus == 0:
                yield InstanceType(
                    system=system.name,
                    gpus=gpus,
                    layout=layout,
                    formats=formats,
                    usd_per_hour=gpus * (system.price_per_hour or 0.0),
                    power_w=gpus * (system.power_limit_w + HOST_W),
                    rates=tuple((gpus // layout.gpus * rates).tolist()),
                    in_flight=tuple(in_flight.tolist()),
                )


def pareto_instances(kinds: Sequence[InstanceType]) -> list[InstanceType]:
    """Return the types that no number of other instances replaces at the same cost."""
    kept: list[InstanceType] = []
    for kind in sorted(kinds, key=lambda kind: (kind.gpus, -sum(kind.rates))):
        if not any(_dominates(other, kind) for other in kept):
            kept = [other for other in kept if not _dominates(kind, other)] + [kind]
    return kept


def _dominates(other: InstanceType, kind: InstanceType) -> bool:
    """Return whether ``other``, with equal GPUs and price, sustains what ``kind`` does."""
    multiple = kind.gpus // other.gpus
    return other.system == kind.system and all(
        multiple * mine >= rate for mine, rate in zip(other.rates, kind.rates, strict=True)
    )


def _unserved_message(
    demand: Demand,
    demand_index: int,
    tables: Sequence[pd.DataFrame],
    requirements: Requirements,
    sizes: Sequence[int],
) -> str:
    """Return what would serve a demand that no instance can serve."""
    rows = pd.concat(tables) if tables else pd.DataFrame({"demand": []})
    rows = rows[rows["demand"] == demand_index]
    if rows.empty:
        largest = max(sizes)
        return (
            f"requests of {demand} do not fit on an instance of up to {largest} GPUs: use more "
            "--gpus-per-instance, or systems with more memory"
        )
    # The latency that exceeds its limit most decides.
    excess = np.maximum(
        rows["tpot_ms"] / requirements.tpot_ms, rows["ttft_ms"] / requirements.ttft_ms
    )
    nearest = rows.iloc[int(np.argmin(excess))]
    return (
        f"no instance meets the limits for requests of {demand}: the nearest is "
        f"{nearest['gpus']} × {nearest['system']} with {nearest['ttft_ms']:.0f} ms to the first "
        f"token and {nearest['tpot_ms']:.1f} ms per further token; raise --limit ttft= or tpot= to "
        "that"
    )
