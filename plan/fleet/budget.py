"""How many servers a power budget feeds, and what caps on their power cost (the POLCA question).

Those who set aside the limit of every board feed few servers, which hardly ever draw that at once.
Servers that serve different requests are independent, so that the power of many is nearly normal
about the sum of their means; as many fit as stay within the budget but for a small share of the
time, in which caps that act for a moment (arXiv:2308.12908) must keep the site within it. A cap
that is always on lets more servers in, each of which is slower.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from foretune.errors import UsageError
from foretune.plan.fleet.server import Server

OVERLOAD_SHARE = 1e-3
"""Share of the time in which the servers may want more than the budget."""
CAP_SHARES = tuple(round(1.0 - 0.05 * i, 2) for i in range(13))
"""Caps that are looked at, as shares of the board's limit."""


@dataclass(frozen=True)
class Oversubscription:
    """Servers that share a budget, every GPU capped alike.

    Attributes:
        cap_w: of a GPU.
        servers: how many.
        provisioned: how many there would be if the limit of every board were set aside.
        slowdown: of each server's work, 1 where the cap costs nothing.
        tokens_per_s: of all servers.
        mean_w: of all servers.
    """

    cap_w: float
    servers: int
    provisioned: int
    slowdown: float
    tokens_per_s: float
    mean_w: float

    @property
    def extra_share(self) -> float:
        """How many more servers there are than without prediction, as a share."""
        return self.servers / self.provisioned - 1.0 if self.provisioned else np.inf


def oversubscriptions(
    server: Server,
    budget_w: float,
    shares: Sequence[float] = CAP_SHARES,
    overload_share: float = OVERLOAD_SHARE,
) -> list[Oversubscription]:
    """Return what a budget feeds at every cap, the highest cap first.

    Args:
        server: that there are to be many of.
        budget_w: of the site, watts.
        shares: caps, as shares of the board's limit.
        overload_share: share of the time in which the budget may be exceeded, 0 … 0.5.

    Raises:
        UsageError: not one server fits.
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
            f"{budget_w / 1e3:g} kW feed not one server, which draws {min_mean_w / 1e3:.1f} kW and "
            "more: raise --power-kw or take fewer --gpus"
        )
    return found


def best(found: Sequence[Oversubscription], max_slowdown: float = np.inf) -> Oversubscription:
    """Return the one of most tokens per second; of several the one of the highest cap.

    Args:
        found: what `oversubscriptions` returned.
        max_slowdown: the most slowdown that is allowed; where all exceed it, the least slow is
            taken.
    """
    allowed = [one for one in found if one.slowdown <= max_slowdown] or [
        min(found, key=lambda one: one.slowdown)
    ]
    return max(allowed, key=lambda one: (one.tokens_per_s, one.cap_w))


def _max_servers(
    mean_w: float, spread_w: float, peak_w: float, budget_w: float, overload_share: float
) -> int:
    """Return the most servers whose power stays within the budget but for ``overload_share`` of
    the time.

    ``n·mean + z·√n·spread <= budget`` is solved for √n. Few servers may all peak at once: then as
    many fit as the budget holds peaks.
    """
    z = norm.isf(overload_share)
    root = (np.sqrt((z * spread_w) ** 2 + 4.0 * mean_w * budget_w) - z * spread_w) / (2.0 * mean_w)
    return int(max(np.floor(root**2 + 1e-9), budget_w // peak_w))
