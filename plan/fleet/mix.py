"""The cheapest mix of instances for given requests: an integer programme, solved by HiGHS.

Whole numbers of instances are rented; the requests of a length are spread over types in any
proportions. Serving a rate takes its share of what an instance sustains of that length, and shares
of different lengths add up. Where requests are cut into slices that are never divided (Mélange,
arXiv:2404.14527), costs approach these from above as the slices become finer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from foretune.errors import UsageError
from foretune.plan.fleet.capacity import InstanceType

TIME_LIMIT_S = 60.0
"""The solver's time, after which the best mix so far is taken."""
MIN_SHARE = 1e-6
"""Below it a share of requests is rounding."""


@dataclass(frozen=True)
class Limits:
    """What a fleet must keep to.

    Attributes:
        gpus: the most GPUs of some systems, by name; of others there are enough.
        power_w: the most that may be provisioned, watts.
    """

    gpus: Mapping[str, int] = field(default_factory=dict)
    power_w: float = np.inf


@dataclass(frozen=True)
class Share:
    """Instances of one type, and what they serve.

    Attributes:
        kind: the type.
        count: how many are rented.
        served: the share of each demand that they serve, 0 … 1.
        utilization: the share of what they sustain that is used, 0 … 1.
    """

    kind: InstanceType
    count: int
    served: tuple[float, ...]
    utilization: float


@dataclass(frozen=True)
class Fleet:
    """Instances that serve all requests.

    Attributes:
        shares: the rented types, the dearest first.
        optimality_gap: by how much, at most, a cheaper fleet may undercut this one, as a share; 0
            where it is proven the cheapest.
    """

    shares: tuple[Share, ...]
    optimality_gap: float = 0.0

    @property
    def usd_per_hour(self) -> float:
        """The cost of an hour."""
        return sum(share.count * share.kind.usd_per_hour for share in self.shares)

    @property
    def power_w(self) -> float:
        """Watts provisioned."""
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

    Args:
        kinds: what can be rented.
        per_s: requests per second of each length, in the order of the types' rates.
        limits: on GPUs and power; None has none.

    Raises:
        UsageError: no fleet serves them within the limits; the message says what would.
    """
    limits = limits or Limits()
    unknown = {kind.system for kind in kinds if np.isnan(kind.power_w)}
    if unknown and np.isfinite(limits.power_w):
        raise UsageError(f"the power of {', '.join(sorted(unknown))} is not known: do not limit it")
    fleet = _solve(kinds, np.asarray(per_s, dtype=float), limits)
    if fleet is not None:
        return fleet
    unlimited = _solve(kinds, np.asarray(per_s, dtype=float), Limits())
    if unlimited is None:
        raise UsageError("no type of instance serves all of the requests: name more systems")
    needed = ", ".join(f"{count} × {system}" for system, count in unlimited.gpus.items())
    raise UsageError(
        f"the available GPUs or the power do not suffice: without limits the cheapest takes "
        f"{needed} and {unlimited.power_w / 1e3:.1f} kW"
    )


def single_fleets(
    kinds: Sequence[InstanceType], per_s: Sequence[float], limits: Limits | None = None
) -> dict[str, Fleet]:
    """Return the cheapest fleet of each system alone; systems that cannot do it are left out.

    Args:
        kinds: what can be rented.
        per_s: requests per second of each length.
        limits: as those of the mix.
    """
    rates, found = np.asarray(per_s, dtype=float), {}
    for system in dict.fromkeys(kind.system for kind in kinds):
        fleet = _solve([k for k in kinds if k.system == system], rates, limits or Limits())
        if fleet is not None:
            found[system] = fleet
    return found


def _solve(kinds: Sequence[InstanceType], per_s: np.ndarray, limits: Limits) -> Fleet | None:
    """Return the cheapest fleet; None if there is none.

    Variables are the number of instances of each type, then the share of a demand that a type
    serves, for every pair of which the type serves anything.
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
    """Return the limits on GPUs and power."""
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
