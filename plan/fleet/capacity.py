"""Demand on a fleet, and requests per second that an instance sustains within latency limits.

An instance is rented as a whole and serves with one layout and one format. Only the number of
requests in flight follows the randomly arriving requests.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.importers.files import read_table, require
from foretune.errors import RunTableError, UsageError
from foretune.files import translate_read_errors
from foretune.plan.describe.accuracy import recovery
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.system import System
from foretune.plan.describe.workload import Workload
from foretune.plan.engine.requests import MAX_TOKENS
from foretune.plan.serve.at_rate import LoadCurve
from foretune.plan.serve.candidates import Candidate, candidate_deployments, one_pool_candidates
from foretune.plan.serve.deployments.analytic import StepTimers
from foretune.plan.serve.prediction import predict
from foretune.plan.serve.requirements import Requirements

HOST_W = (6500 - 8 * 400) / 8
"""Watts per GPU of a server besides its GPUs: from NVIDIA's DGX A100 data sheet (6.5 kW with eight
GPUs of 400 W)."""
Setup = tuple[Layout, Formats]
"""Layout and formats of a replica."""

COLUMNS = ("isl", "osl", "requests_per_s")


@dataclass(frozen=True)
class Demand:
    """Requests of one length.

    ``per_s`` arrive per second.
    """

    workload: Workload
    per_s: float

    def __str__(self) -> str:
        return f"{self.workload.isl}+{self.workload.osl} tokens"


def read_requests(path: str | os.PathLike[str]) -> list[Demand]:
    """Return the demands in a CSV or Parquet file with columns ``isl, osl, requests_per_s``.

    Rows of one length are summed; zero rates are dropped. Raises RunTableError if the file cannot
    be read, lacks a column, or has an invalid row.
    """
    table = read_table(Path(path), COLUMNS)
    require(table, COLUMNS, Path(path), "a table of requests")
    with translate_read_errors(path, RunTableError, "is damaged: {}"):
        numbers = table[list(COLUMNS)].apply(pd.to_numeric, errors="coerce")
    for i, row in enumerate(numbers.to_dict("records"), 1):
        if error := _row_error(row):
            raise RunTableError(f"{path}, row {i}: {error}")
    per_s = numbers.groupby(["isl", "osl"])["requests_per_s"].sum()
    found = [
        Demand(Workload(int(i), int(o)), float(rate)) for (i, o), rate in per_s.items() if rate
    ]
    if not found:
        raise RunTableError(f"{path} has no requests: add rows of {', '.join(COLUMNS)}")
    return found


def _row_error(row: Mapping[str, float]) -> str:
    """Return what is wrong with a row; empty if it is valid."""
    for name in ("isl", "osl"):
        if not (row[name] >= 1 and row[name] == np.floor(row[name]) < MAX_TOKENS):
            return f"{name} must be a whole number of tokens, at least 1"
    if not 0 <= row["requests_per_s"] < np.inf:
        return "requests_per_s must be a number of requests, not below 0"
    return ""


@dataclass(frozen=True)
class InstanceType:
    """GPUs rented together, and how a model is served on them.

    Attributes:
        system: the GPUs' short name.
        gpus: number of GPUs.
        layout: of one replica.
        formats: number formats.
        usd_per_hour: price of the instance.
        power_w: provisioned watts: GPUs at their boards' limits, and the host.
        rates: per request length, the highest requests per second of which 90 % meet the limits; 0
            if even single requests do not.
        in_flight: mean requests in flight per replica at those rates.
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
        setups, candidates, labels = _replicas(
            model, system, sizes, demands, backend, formats, requirements
        )
        if candidates:
            way, demand = np.array(labels).T
            tables.append(predict(candidates, timers).assign(way=way, demand=demand))
            rates, in_flight = _sustained_rates(tables[-1], setups, demands, requirements)
            found += _instance_types(system, sizes, setups, rates, in_flight)
    for i, unserved in enumerate(demands):
        if not any(kind.rates[i] > 0 for kind in found):
            raise UsageError(_unserved_message(unserved, i, tables, requirements, sizes))
    return pareto_instances(found)


def _replicas(
    model: ModelDescription,
    system: System,
    sizes: Sequence[int],
    demands: Sequence[Demand],
    backend: str,
    formats: Sequence[Formats] | None,
    requirements: Requirements,
) -> tuple[list[Setup], list[Candidate], list[tuple[int, int]]]:
    """Return the legal replicas that fit memory and meet the accuracy limit, at every load.

    That is their setups, and the candidates with the (setup, demand) of each.
    """
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
                if service.replicas > 1 or (quality or 1.0) < requirements.accuracy:
                    continue
                setup = setups.setdefault((one.layout, one.formats), len(setups))
                here = one_pool_candidates([service])
                candidates += here
                labels += [(setup, i)] * len(here)
    return list(setups), candidates, labels


def _replica_sizes(sizes: Sequence[int]) -> list[int]:
    """Return the replica sizes that divide an instance's GPUs."""
    return sorted({n for gpus in sizes for n in range(1, gpus + 1) if gpus % n == 0})


def _sustained_rates(
    table: pd.DataFrame,
    setups: Sequence[Setup],
    demands: Sequence[Demand],
    requirements: Requirements,
) -> tuple[np.ndarray, np.ndarray]:
    """Return a replica's highest rates, and requests in flight, by setup and demand."""
    rates, in_flight = np.zeros((2, len(setups), len(demands)))
    for (setup, i), rows in table.groupby(["way", "demand"]):
        batch, ttft, tpot = rows[["batch", "ttft_ms", "tpot_ms"]].to_numpy(dtype=float).T
        curve = LoadCurve(batch, ttft, tpot, demands[i].workload.osl, requirements)
        rate = curve.goodput()
        if load := curve.at(rate):
            rates[setup, i], in_flight[setup, i] = rate, load.in_flight
    return rates, in_flight


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
    """Return the types that no number of others replaces at the same cost."""
    kept: list[InstanceType] = []
    for kind in sorted(kinds, key=lambda kind: (kind.gpus, -sum(kind.rates))):
        if not any(_dominates(other, kind) for other in kept):
            kept = [other for other in kept if not _dominates(kind, other)] + [kind]
    return kept


def _dominates(other: InstanceType, kind: InstanceType) -> bool:
    """Return whether instances of ``other``, with as many GPUs, sustain all that ``kind`` does.

    Price and power are proportional to GPUs, so they are equal.
    """
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
    """Return what would serve a demand that no instance serves."""
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
        f"token and {nearest['tpot_ms']:.1f} ms per further token; raise --ttft or --tpot to that"
    )
