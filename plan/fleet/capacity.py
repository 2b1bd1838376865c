"""Demand on a fleet, and requests per second that an instance sustains within latency limits.

An instance is rented as a whole and serves with one layout and one format. Only the number of
requests in flight follows the randomly arriving requests.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from foretune.errors import RunTableError, UsageError
from foretune.plan.describe.accuracy import recovery
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout, Workload, divisors
from foretune.plan.describe.system import System
from foretune.plan.engine.simulator import MAX_TOKENS, read_numbers
from foretune.plan.serve.candidates import candidate_deployments, one_pool_candidates, predict
from foretune.plan.serve.deployments.analytic import StepTimers
from foretune.plan.serve.request import PlanRequest
from foretune.plan.serve.requirements import LoadCurve, Requirements

HOST_W = (6500 - 8 * 400) / 8
"""Watts per GPU of a server besides its GPUs: from NVIDIA's DGX A100 data sheet (6.5 kW with eight
GPUs of 400 W)."""

COLUMNS = ("isl", "osl", "requests_per_s")


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
    found: list[InstanceType] = []
    tables: list[pd.DataFrame] = []
    for system in systems:
        on_system(system.name)
        replicas = [
            (one, i)
            for i, demand in enumerate(demands)
            for size in sorted({n for gpus in sizes for n in divisors(gpus)})
            for d in candidate_deployments(
                PlanRequest(
                    model=model,
                    systems=(system,),
                    gpus=size,
                    workload=demand.workload,
                    engine=backend,
                    formats=tuple(formats) if formats else None,
                ),
                system,
            )
            if d.replicas == 1 and (recovery(d.formats, model) or 0.0) >= requirements.accuracy
            for one in one_pool_candidates([d])
        ]
        if replicas:
            table = predict([d for d, _ in replicas], timers)
            setups = [(d.layout, d.formats) for d, _ in replicas]
            tables.append(table.assign(setup=setups, demand=[i for _, i in replicas]))
            found += _instance_types(system, sizes, tables[-1], demands, requirements)
    for i, unserved in enumerate(demands):
        if not any(kind.rates[i] > 0 for kind in found):
            raise UsageError(_unserved_message(unserved, i, tables, requirements, sizes))
    return pareto_instances(found)


def _instance_types(
    system: System,
    sizes: Sequence[int],
    table: pd.DataFrame,
    demands: Sequence[Demand],
    requirements: Requirements,
) -> Iterator[InstanceType]:
    """Yield the types with their highest rates, and the requests in flight at them."""
    for (layout, formats), rows in table.groupby("setup", sort=False):
        rates, in_flight = np.zeros((2, len(demands)))
        for i, loads in rows.groupby("demand"):
            curve = LoadCurve(loads, demands[i].workload.osl, requirements)
            rate = curve.goodput()
            if load := curve.at(rate):
                rates[i], in_flight[i] = rate, load.in_flight
        for gpus in sizes if rates.any() else ():
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


TIME_LIMIT_S = 60.0
"""Time limit of the solver; then the best mix so far is used."""
MIN_SHARE = 1e-6
"""Smaller shares of requests are rounding errors."""


@dataclass(frozen=True)
class Limits:
    """Maximum GPUs by system (others are unlimited), and maximum provisioned watts."""

    gpus: Mapping[str, int] = field(default_factory=dict)
    power_w: float = np.inf


@dataclass(frozen=True)
class Share:
    """Instances of one type, and the requests they serve."""

    kind: InstanceType
    count: int
    served: tuple[float, ...]  # share of each demand that they serve, 0 … 1
    utilization: float  # used share of their sustained rates, 0 … 1


@dataclass(frozen=True)
class Fleet:
    """Instances that serve all requests.

    Attributes:
        shares: the rented types, most expensive first.
        optimality_gap: upper bound on the relative saving of a cheaper fleet; 0 if proven optimal.
    """

    shares: tuple[Share, ...]
    optimality_gap: float = 0.0

    @property
    def usd_per_hour(self) -> float:
        """Cost per hour."""
        return sum(share.count * share.kind.usd_per_hour for share in self.shares)

    @property
    def power_w(self) -> float:
        """Provisioned watts."""
        return sum(share.count * share.kind.power_w for share in self.shares)

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs by system."""
        total: Counter[str] = Counter()
        for share in self.shares:
            total[share.kind.system] += share.count * share.kind.gpus
        return dict(total)


def cheapest_fleet(
    kinds: Sequence[InstanceType], per_s: Sequence[float], limits: Limits | None = None
) -> Fleet:
    """Return the cheapest fleet that serves all requests.

    Raises UsageError if no fleet serves them within the limits; the message says what would
    suffice. ``per_s`` has the requests per second of each length, in the order of the types' rates.
    """
    limits = limits or Limits()
    unknown = {kind.system for kind in kinds if np.isnan(kind.power_w)}
    if unknown and np.isfinite(limits.power_w):
        raise UsageError(f"the power of {', '.join(sorted(unknown))} is unknown: drop that limit")
    fleet = _solve(kinds, np.asarray(per_s, dtype=float), limits)
    if fleet is not None:
        return fleet
    unlimited = _solve(kinds, np.asarray(per_s, dtype=float), Limits())
    if unlimited is None:
        raise UsageError("no instance type serves all requests: add more --systems")
    needed = ", ".join(f"{count} × {system}" for system, count in unlimited.gpus.items())
    raise UsageError(
        f"the allowed GPUs or power are not sufficient: without limits the cheapest fleet has "
        f"{needed} and {unlimited.power_w / 1e3:.1f} kW"
    )


def single_fleets(
    kinds: Sequence[InstanceType], per_s: Sequence[float], limits: Limits | None = None
) -> dict[str, Fleet]:
    """Return the cheapest fleet with each system alone; systems that cannot serve are left out."""
    rates, found = np.asarray(per_s, dtype=float), {}
    for system in dict.fromkeys(kind.system for kind in kinds):
        fleet = _solve([k for k in kinds if k.system == system], rates, limits or Limits())
        if fleet is not None:
            found[system] = fleet
    return found


def _solve(kinds: Sequence[InstanceType], per_s: np.ndarray, limits: Limits) -> Fleet | None:
    """Return the cheapest fleet; None if there is none.

    Variables are the number of instances of each type, then the share of a demand that a type
    serves, for every servable pair.
    """
    rates = np.array([kind.rates for kind in kinds], dtype=float).reshape(len(kinds), len(per_s))
    kind_of, demand_of = np.nonzero(rates > 0)
    if len(np.unique(demand_of)) < len(per_s):
        return None
    n, pairs = len(kinds), len(kind_of)
    cost = np.r_[[kind.usd_per_hour for kind in kinds], np.zeros(pairs)]
    load = per_s[demand_of] / rates[kind_of, demand_of]
    pair_columns = n + np.arange(pairs)
    shape = (n, n + pairs)
    capacity_rows = coo_array(
        (np.r_[load, -np.ones(n)], (np.r_[kind_of, :n], np.r_[pair_columns, :n])), shape
    )
    all_served = coo_array((np.ones(pairs), (demand_of, pair_columns)), (len(per_s), n + pairs))
    constraints = [
        LinearConstraint(capacity_rows, -np.inf, 0.0),
        LinearConstraint(all_served, 1.0, 1.0),
    ]
    upper: list[tuple[list[float], float]] = [
        ([kind.gpus if kind.system == name else 0.0 for kind in kinds], most)
        for name, most in limits.gpus.items()
    ]
    if np.isfinite(limits.power_w):
        upper.append(([kind.power_w for kind in kinds], limits.power_w))
    for row, most in upper:
        constraints.append(LinearConstraint(np.r_[row, np.zeros(pairs)][None], -np.inf, most))
    answer = milp(
        cost,
        integrality=np.r_[np.ones(n), np.zeros(pairs)],
        bounds=Bounds(0.0, np.r_[np.full(n, np.inf), np.ones(pairs)]),
        constraints=constraints,
        options={"time_limit": TIME_LIMIT_S, "mip_rel_gap": 0.0},
    )
    if answer.x is None:
        return None
    served = np.zeros_like(rates)
    served[kind_of, demand_of] = answer.x[n:]
    counts = np.round(answer.x[:n]).astype(int)
    return _fleet(kinds, counts, served, per_s, max(float(answer.mip_gap or 0.0), 0.0))


def _fleet(
    kinds: Sequence[InstanceType],
    counts: np.ndarray,
    served: np.ndarray,
    per_s: np.ndarray,
    gap: float,
) -> Fleet:
    shares = []
    for kind, count, part in zip(kinds, counts, served, strict=True):
        if count == 0:
            continue
        part = np.where(part > MIN_SHARE, part, 0.0)
        rates = np.maximum(kind.rates, np.finfo(float).tiny)
        utilization = float(np.sum(part * per_s / rates)) / count
        shares.append(Share(kind, int(count), tuple(part.tolist()), utilization))
    shares.sort(key=lambda share: -share.count * share.kind.usd_per_hour)
    return Fleet(tuple(shares), gap)
