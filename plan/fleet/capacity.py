"""What instances of GPUs sustain: requests per second of each length, within limits of latency.

An instance is rented as a whole and serves in one layout and one format whatever it is sent; only
the number of requests in flight follows the requests, which arrive at random.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.plan.describe.accuracy import recovery
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.system import System
from foretune.plan.fleet.requests import Demand
from foretune.plan.fleet.server import HOST_W
from foretune.plan.serve.candidates import Candidate, candidate_deployments, one_pool_candidates
from foretune.plan.serve.deployments.analytic import StepTimers
from foretune.plan.serve.deployments.arrivals import LoadCurve
from foretune.plan.serve.deployments.correction import LatencyPredictor
from foretune.plan.serve.prediction import predict
from foretune.plan.serve.requirements import Requirements

DOMINANCE_RATIO = 1.25
"""How many times as many requests, arriving evenly, keep a way ahead where they arrive at random:
who serves more has more in flight, whose times chance disturbs less."""
Setup = tuple[Layout, Formats]
"""How one replica serves."""


@dataclass(frozen=True)
class InstanceType:
    """GPUs that are rented together, and how a model is served on them.

    Attributes:
        system: the GPUs' short name.
        gpus: how many.
        layout: over which GPUs of one replica.
        formats: in which formats.
        usd_per_hour: of the instance.
        power_w: provisioned for it, watts: GPUs at the limit of their boards, and their host.
        rates: the most requests per second of each length of which nine in ten keep to the limits;
            0 where they do not even one by one.
        in_flight: requests in flight per replica at those rates, on average.
    """

    system: str
    gpus: int
    layout: Layout
    formats: Formats
    usd_per_hour: float
    power_w: float
    rates: tuple[float, ...]
    in_flight: tuple[float, ...]

    @property
    def replicas(self) -> int:
        """How many copies of the model it serves."""
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
    correction: LatencyPredictor | None = None,
    on_system: Callable[[str], None] = lambda name: None,
) -> list[InstanceType]:
    """Return what can be rented and what it sustains, without types that others make needless.

    Args:
        model: what is served.
        systems: the GPUs to choose from; each has a price.
        sizes: GPUs per instance to choose from.
        demands: the requests.
        timers: say what operators take.
        requirements: limits on times and quality; None has none.
        backend: the engine.
        formats: to choose from; None takes what each GPU supports.
        correction: trained on measured deployments; None predicts by formulas.
        on_system: is told each system's name as its turn comes.

    Raises:
        UsageError: a system has no price, or no instance serves one of the demands; the message
            says what would.
    """
    for system in systems:
        if system.price_per_hour is None:
            raise UsageError(f"{system.name} has no price: give --prices FILE with one")
    requirements = requirements or Requirements()
    found: list[InstanceType] = []
    tables: list[pd.DataFrame] = []
    for system in systems:
        on_system(system.name)
        replicas = _Replicas.generate(model, system, sizes, demands, backend, formats, requirements)
        if replicas.labels:
            table = replicas.predictions(timers, correction)
            rates, in_flight = _sustained_rates(table, replicas.setups, demands, requirements)
            tables.append(table)
            found += _instance_types(system, sizes, replicas.setups, rates, in_flight)
    for i, demand in enumerate(demands):
        if not any(kind.rates[i] > 0 for kind in found):
            raise UsageError(_unserved_message(demand, i, tables, requirements, sizes))
    return pareto_instances(found)


@dataclass(frozen=True)
class _Replicas:
    """One replica on a system: in every way of serving, under every demand, at every load.

    Attributes:
        setups: all of them.
        candidates: what is predicted.
        labels: the numbers of each candidate's way and demand.
    """

    setups: list[Setup]
    candidates: list[Candidate]
    labels: list[tuple[int, int]]

    @classmethod
    def generate(
        cls,
        model: ModelDescription,
        system: System,
        sizes: Sequence[int],
        demands: Sequence[Demand],
        backend: str,
        formats: Sequence[Formats] | None,
        requirements: Requirements,
    ) -> Self:
        """Return those that are legal, fit memory, and keep enough of the quality."""
        setups: dict[Setup, int] = {}
        candidates: list[Candidate] = []
        labels: list[tuple[int, int]] = []
        for i, demand in enumerate(demands):
            for size in _replica_sizes(sizes):
                for service in candidate_deployments(
                    model, system, size, demand.workload, backend, formats
                ):
                    one = service.deployment
                    quality = recovery(one.formats, model)
                    if service.replicas > 1 or (
                        quality is not None and quality < requirements.accuracy
                    ):
                        continue
                    setup = setups.setdefault((one.layout, one.formats), len(setups))
                    here = one_pool_candidates([service])
                    candidates += here
                    labels += [(setup, i)] * len(here)
        return cls(list(setups), candidates, labels)

    def predictions(self, timers: StepTimers, correction: LatencyPredictor | None) -> pd.DataFrame:
        """Return what to expect: the columns of `predict`, and ``way`` and ``demand``."""
        table = predict(self.candidates, timers, correction)
        return table.assign(**dict(zip(("way", "demand"), np.array(self.labels).T, strict=True)))


def _replica_sizes(sizes: Sequence[int]) -> list[int]:
    """Return sizes of replicas: several on an instance divide its GPUs among them."""
    return sorted({n for gpus in sizes for n in range(1, gpus + 1) if gpus % n == 0})


def _sustained_rates(
    table: pd.DataFrame,
    setups: Sequence[Setup],
    demands: Sequence[Demand],
    requirements: Requirements,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the most requests per second of a replica, and those in flight, by way and demand.

    Both are zero for ways that are left behind even where requests arrive evenly.
    """
    within = (table["ttft_ms"] <= requirements.ttft_ms) & (table["tpot_ms"] <= requirements.tpot_ms)
    steady_rates, rates, in_flight = np.zeros((3, len(setups), len(demands)))
    indices = table["way"].to_numpy(), table["demand"].to_numpy()
    np.maximum.at(steady_rates, indices, np.where(within, table["requests_per_s"], 0.0))
    contending = contenders(steady_rates, np.array([layout.gpus for layout, _ in setups]))
    for (setup, i), rows in table[contending[indices[0]]].groupby(["way", "demand"]):
        if steady_rates[setup, i] == 0:
            continue
        batch, ttft, tpot = rows[["batch", "ttft_ms", "tpot_ms"]].to_numpy(dtype=float).T
        curve = LoadCurve(batch, ttft, tpot, demands[i].workload.osl, requirements)
        rate = curve.goodput()
        if load := curve.at(rate):
            rates[setup, i], in_flight[setup, i] = rate, load.in_flight
    return rates, in_flight


def contenders(rates: np.ndarray, gpus: np.ndarray) -> np.ndarray:
    """Return which ways of serving may be worth their GPUs.

    A way is left out if another, on as many GPUs, is well ahead of it in everything.

    Args:
        rates: requests per second where they arrive evenly, by way and demand.
        gpus: of one replica, by way.
    """
    dominates = (rates[None] >= DOMINANCE_RATIO * rates[:, None]).all(axis=2) & (
        gpus[:, None] == gpus
    )
    contending: np.ndarray = ~dominates.any(axis=1)
    return contending


def _instance_types(
    system: System,
    sizes: Sequence[int],
    setups: Sequence[Setup],
    rates: np.ndarray,
    in_flight: np.ndarray,
) -> Iterator[InstanceType]:
    for setup, (layout, formats) in enumerate(setups):
        for gpus in sizes:
            if gpus % layout.gpus or not rates[setup].any():
                continue
            yield InstanceType(
                system=system.name,
                gpus=gpus,
                layout=layout,
                formats=formats,
                usd_per_hour=gpus * (system.price_per_hour or 0.0),
                power_w=gpus * (system.power_limit_w + HOST_W),
                rates=tuple((gpus // layout.gpus * rates[setup]).tolist()),
                in_flight=tuple(in_flight[setup].tolist()),
            )


def pareto_instances(kinds: Sequence[InstanceType]) -> list[InstanceType]:
    """Return the types without those that a number of others replace at the same cost."""
    kept: list[InstanceType] = []
    for kind in sorted(kinds, key=lambda kind: (kind.gpus, -sum(kind.rates))):
        if not any(_dominates(other, kind) for other in kept):
            kept = [other for other in kept if not _dominates(kind, other)] + [kind]
    return kept


def _dominates(other: InstanceType, kind: InstanceType) -> bool:
    """Return whether some ``other``, of as many GPUs of one system, sustain all that ``kind`` does.

    Price and power go by the GPU, so that they are no more.
    """
    multiple = kind.gpus // other.gpus
    return other.system == kind.system and all(
        multiple * mine >= rate for mine, rate in zip(other.rates, kind.rates, strict=True)
    )


def _limit_utilization(rows: pd.DataFrame, requirements: Requirements) -> np.ndarray:
    """Return how far latencies go to their limits; above one they break them."""
    times = np.stack(
        [rows["tpot_ms"] / requirements.tpot_ms, rows["ttft_ms"] / requirements.ttft_ms]
    )
    utilization: np.ndarray = times.max(axis=0)
    return utilization


def _unserved_message(
    demand: Demand,
    demand_index: int,
    tables: Sequence[pd.DataFrame],
    requirements: Requirements,
    sizes: Sequence[int],
) -> str:
    """Return what it would take to serve a demand that nothing serves."""
    rows = pd.concat(tables) if tables else pd.DataFrame({"demand": []})
    rows = rows[rows["demand"] == demand_index]
    if rows.empty:
        largest = max(sizes)
        return (
            f"requests of {demand} fit on no instance of up to {largest} GPUs: take more "
            "--gpus-per-instance, or systems of more memory"
        )
    nearest = rows.iloc[int(np.argmin(_limit_utilization(rows, requirements)))]
    return (
        f"no instance keeps to the limits for requests of {demand}: nearest is "
        f"{nearest['gpus']} × {nearest['system']} with {nearest['ttft_ms']:.0f} ms to the first "
        f"token and {nearest['tpot_ms']:.1f} ms per further one; raise --ttft or --tpot to that"
    )
