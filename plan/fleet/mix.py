"""The cheapest mix of instances that serves all requests: a mixed-integer linear program."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from foretune.errors import UsageError
from foretune.plan.fleet.capacity import InstanceType

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
    rates = np.asarray(per_s, dtype=float)
    fleets = {}
    for system in dict.fromkeys(kind.system for kind in kinds):
        of_system = [kind for kind in kinds if kind.system == system]
        fleet = _solve(of_system, rates, limits or Limits())
        if fleet is not None:
            fleets[system] = fleet
    return fleets


def _solve(kinds: Sequence[InstanceType], per_s: np.ndarray, limits: Limits) -> Fleet | None:
    """Return the cheapest fleet; None if there is none.

    Variables are the number of instances of each type, then the share of a demand that a type
    serves, for every servable pair.
    """
    rates = np.array([kind.rates for kind in kinds], dtype=float).reshape(len(kinds), len(per_s))
    kind_of_pair, demand_of_pair = np.nonzero(rates > 0)
    if len(np.unique(demand_of_pair)) < len(per_s):
        return None
    n_kinds = len(kinds)
    n_pairs = len(kind_of_pair)
    no_pairs = np.zeros(n_pairs)

    # 1. Instances have the capacity for what they serve: load of the pairs - instances <= 0.
    load_of_pair = per_s[demand_of_pair] / rates[kind_of_pair, demand_of_pair]
    pair_columns = n_kinds + np.arange(n_pairs)
    rows = np.r_[kind_of_pair, :n_kinds]
    columns = np.r_[pair_columns, :n_kinds]
    values = np.r_[load_of_pair, -np.ones(n_kinds)]
    capacity = coo_array((values, (rows, columns)), (n_kinds, n_kinds + n_pairs))

    # 2. Every demand is served in full.
    served_shares = (np.ones(n_pairs), (demand_of_pair, pair_columns))
    all_served = coo_array(served_shares, (len(per_s), n_kinds + n_pairs))
    constraints = [
        LinearConstraint(capacity, -np.inf, 0.0),
        LinearConstraint(all_served, 1.0, 1.0),
    ]

    # 3. GPUs of a system, and watts, are limited.
    for system, most in limits.gpus.items():
        gpus = [kind.gpus if kind.system == system else 0.0 for kind in kinds]
        constraints.append(LinearConstraint(np.r_[gpus, no_pairs][None], -np.inf, most))
    if np.isfinite(limits.power_w):
        watts = [kind.power_w for kind in kinds]
        constraints.append(LinearConstraint(np.r_[watts, no_pairs][None], -np.inf, limits.power_w))

    answer = milp(
        np.r_[[kind.usd_per_hour for kind in kinds], no_pairs],
        integrality=np.r_[np.ones(n_kinds), no_pairs],
        bounds=Bounds(0.0, np.r_[np.full(n_kinds, np.inf), np.ones(n_pairs)]),
        constraints=constraints,
        options={"time_limit": TIME_LIMIT_S, "mip_rel_gap": 0.0},
    )
    if answer.x is None:
        return None
    served = np.zeros_like(rates)
    served[kind_of_pair, demand_of_pair] = answer.x[n_kinds:]
    counts = np.round(answer.x[:n_kinds]).astype(int)
    gap = max(float(answer.mip_gap or 0.0), 0.0)
    return _fleet(kinds, counts=counts, served=served, per_s=per_s, gap=gap)


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
