"""The cheapest mix of instances for a demand: a mixed-integer program, solved by HiGHS.

Numbers of instances are integers; the requests of a length are divided over types in any
proportions. A rate uses its share of an instance's sustained rate for that length, and the shares
of different lengths add up. With indivisible slices of requests (Mélange, arXiv:2404.14527), costs
approach these from above as slices get finer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from foretune.errors import UsageError
from foretune.plan.fleet.capacity import InstanceType

TIME_LIMIT_S = 60.0
"""Time limit of the solver; the best mix so far is then used."""
MIN_SHARE = 1e-6
"""Smaller shares of requests are rounding errors."""


@dataclass(frozen=True)
class Limits:
    """Limits of a fleet.

    ``gpus`` has the maximum GPUs by system (others are unlimited), ``power_w`` the maximum
    provisioned watts.
    """

    gpus: Mapping[str, int] = field(default_factory=dict)
    power_w: float = np.inf


@dataclass(frozen=True)
class Share:
    """Instances of one type, and the requests they serve.

    Attributes:
        kind: the type.
        count: number of instances.
        served: share of each demand they serve, 0 … 1.
        utilization: used share of their sustained rates, 0 … 1.
    """

    kind: InstanceType
    count: int
    served: tuple[float, ...]
    utilization: float


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
        total: dict[str, int] = {}
        for share in self.shares:
            total[share.kind.system] = (
                total.get(share.kind.system, 0) + share.count * share.kind.gpus
            )
        return total


def cheapest_fleet(
    kinds: Sequence[InstanceType], per_s: Sequence[float], limits: Limits | None = None
) -> Fleet:
    """Return the cheapest fleet that serves all requests.

    Raises UsageError if no fleet serves them within the limits; the message gives what would.
    ``per_s`` has the requests per second of each length, in the order of the types' rates.
    """
    limits = limits or Limits()
    unknown = {kind.system for kind in kinds if np.isnan(kind.power_w)}
    if unknown and np.isfinite(limits.power_w):
        raise UsageError(
            f"the power of {', '.join(sorted(unknown))} is unknown: drop the power limit"
        )
    fleet = _solve(kinds, np.asarray(per_s, dtype=float), limits)
    if fleet is not None:
        return fleet
    unlimited = _solve(kinds, np.asarray(per_s, dtype=float), Limits())
    if unlimited is None:
        raise UsageError("no instance types serve all requests: add more --systems")
    needed = ", ".join(f"{count} × {system}" for system, count in unlimited.gpus.items())
    raise UsageError(
        f"the GPUs or the power are not sufficient: without limits the cheapest fleet has "
        f"{needed} and {unlimited.power_w / 1e3:.1f} kW"
    )


def single_fleets(
    kinds: Sequence[InstanceType], per_s: Sequence[float], limits: Limits | None = None
) -> dict[str, Fleet]:
    """Return the cheapest fleet of each system alone; systems that cannot serve are left out."""
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
        *_limit_constraints(kinds, limits, n + pairs),
    ]
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


def _limit_constraints(
    kinds: Sequence[InstanceType], limits: Limits, variables: int
) -> list[LinearConstraint]:
    found = [
        ([float(kind.gpus) if kind.system == system else 0.0 for kind in kinds], float(upper))
        for system, upper in limits.gpus.items()
    ]
    if np.isfinite(limits.power_w):
        found.append(([kind.power_w for kind in kinds], limits.power_w))
    return [
        LinearConstraint(np.r_[row, np.zeros(variables - len(kinds))][None], -np.inf, upper)
        for row, upper in found
    ]


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
