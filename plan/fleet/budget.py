"""Servers in a power budget, and the cost of power caps (POLCA's question).

Provisioning every board's limit allows few servers, which rarely draw it at once. Servers with
different requests are independent, so their total power is nearly normal. As many fit as exceed the
budget only for a small share of the time, during which momentary caps (arXiv:2308.12908) keep the
site within it. A permanent cap allows more servers, each of them slower.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from foretune.errors import UsageError
from foretune.plan.fleet.server import Server

OVERLOAD_SHARE = 1e-3
"""Share of the time in which the servers may demand more than the budget."""
CAP_SHARES = tuple(round(1.0 - 0.05 * i, 2) for i in range(13))
"""Caps to try, as shares of the board's limit."""


@dataclass(frozen=True)
class Oversubscription:
    """Servers that share a budget, with equally capped GPUs.

    Attributes:
        cap_w: cap per GPU.
        servers: number of servers.
        provisioned: number of servers if every board's limit were provisioned.
        slowdown: relative time of each server's work; 1 if the cap costs nothing.
        tokens_per_s: of all servers.
        mean_w: mean power of all servers.
    """

    cap_w: float
    servers: int
    provisioned: int
    slowdown: float
    tokens_per_s: float
    mean_w: float

    @property
    def extra_share(self) -> float:
        """Additional servers relative to provisioning every board's limit."""
        return self.servers / self.provisioned - 1.0 if self.provisioned else np.inf


def oversubscriptions(
    server: Server,
    budget_w: float,
    shares: Sequence[float] = CAP_SHARES,
    overload_share: float = OVERLOAD_SHARE,
) -> list[Oversubscription]:
    """Return the servers in a budget at every cap, highest cap first.

    Raises UsageError if not even one server fits.

    Args:
        server: the kind of server.
        budget_w: power budget of the site.
        shares: caps as shares of the board's limit.
        overload_share: share of the time in which the budget may be exceeded, 0 … 0.5.
    """
    found = []
    for share in shares:
        cap = share * server.limit_w
        if cap <= server.idle_w:
            continue
        draw = server.under_cap(cap)
        servers = _max_servers(
            draw.mean_w, draw.spread_w, server.peak_w(cap), budget_w, overload_share
        )
        found.append(
            Oversubscription(
                cap_w=cap,
                servers=servers,
                provisioned=int(budget_w // server.provisioned_w),
                slowdown=draw.slowdown,
                tokens_per_s=servers * server.tokens_per_s / draw.slowdown,
                mean_w=servers * draw.mean_w,
            )
        )
    if not any(one.servers for one in found):
        min_mean_w = min(server.under_cap(s * server.limit_w).mean_w for s in shares)
        raise UsageError(
            f"{budget_w / 1e3:g} kW is not enough for a server of {min_mean_w / 1e3:.1f} kW: "
            "raise --power-kw or use fewer --gpus"
        )
    return found


def best(found: Sequence[Oversubscription], max_slowdown: float = np.inf) -> Oversubscription:
    """Return the option with the most tokens per second; ties go to the highest cap.

    Args:
        found: from `oversubscriptions`.
        max_slowdown: maximum slowdown; if all exceed it, the least slow is returned.
    """
    allowed = [one for one in found if one.slowdown <= max_slowdown] or [
        min(found, key=lambda one: one.slowdown)
    ]
    return max(allowed, key=lambda one: (one.tokens_per_s, one.cap_w))


def _max_servers(
    mean_w: float, spread_w: float, peak_w: float, budget_w: float, overload_share: float
) -> int:
    """Return how many servers stay within the budget except for ``overload_share``.

    ``n·mean + z·√n·spread <= budget`` is solved for √n. For few servers, the sum of their peaks
    decides.
    """
    z = norm.isf(overload_share)
    root = (np.sqrt((z * spread_w) ** 2 + 4.0 * mean_w * budget_w) - z * spread_w) / (2.0 * mean_w)
    return int(max(np.floor(root**2 + 1e-9), budget_w // peak_w))
