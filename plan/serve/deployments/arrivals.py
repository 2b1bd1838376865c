"""Requests that arrive when they like: how many are in flight, and how long each takes.

A replica that is kept at n requests in flight finishes X(n) of them per second. Where requests
arrive at random, at the rate r, it is taken for a server of that speed: the number in flight is
then a birth-death chain, and P(n) is proportional to rⁿ / (X(1) … X(n)) (the flow-equivalent server
of Chandy, Herzog and Woo, IBM Journal of Research and Development 19, 1975). A request that
arrives finds n others with the same probability, and takes as long as one of n + 1 does.
"""

from dataclasses import dataclass

import numpy as np

from foretune.plan.serve.requirements import Requirements

MIN_GOODPUT_SHARE = 0.9
"""Share of requests that must keep to the limits on times, as in DistServe's goodput (Zhong et
al., arXiv:2401.09670)."""
MAX_UTILIZATION = 0.99
"""Of what a replica can finish: beyond it queues grow without end, or nearly so."""
MAX_QUEUE = 2000
"""Most requests waiting that are looked at."""
BISECTIONS = 14


@dataclass(frozen=True)
class LoadPoint:
    """A replica at some rate of requests.

    Attributes:
        in_flight: requests, on average.
        ttft_ms, tpot_ms: of a request, on average.
        goodput_share: share of requests that keep to the limits on both.
    """

    in_flight: float
    ttft_ms: float
    tpot_ms: float
    goodput_share: float


class LoadCurve:
    """What a replica does at any load, from what it does at some.

    Args:
        in_flight: numbers of requests in flight, ascending.
        ttft_ms, tpot_ms: what was predicted there.
        osl: tokens of an answer.
        requirements: limits on both times.
    """

    def __init__(
        self,
        in_flight: np.ndarray,
        ttft_ms: np.ndarray,
        tpot_ms: np.ndarray,
        osl: int,
        requirements: Requirements,
    ) -> None:
        last = int(in_flight[-1])
        numbers = np.arange(1, last + 1)
        log_in_flight = np.log(in_flight)
        ttft, tpot = (
            np.exp(np.interp(np.log(numbers), log_in_flight, np.log(times)))
            for times in (ttft_ms, tpot_ms)
        )
        # Requests of one more in flight finish no later than without it, all together.
        per_s = np.maximum.accumulate(1e3 * numbers / (ttft + (osl - 1) * tpot))
        self.max_per_s = float(per_s[-1])
        wait = 1e3 * np.arange(1, MAX_QUEUE + 1) / self.max_per_s
        self._per_s = np.r_[per_s, np.full(MAX_QUEUE, self.max_per_s)]
        self._ttft = np.r_[ttft, ttft[-1] + wait]
        self._tpot = np.r_[tpot, np.full(MAX_QUEUE, tpot[-1])]
        self._within_limits = (self._ttft <= requirements.ttft_ms) & (
            self._tpot <= requirements.tpot_ms
        )

    def at(self, rate: float) -> LoadPoint | None:
        """Return what requests take at ``rate`` per second; None if they pile up."""
        if not 0 < rate <= MAX_UTILIZATION * self.max_per_s:
            return None
        log = np.r_[0.0, np.cumsum(np.log(rate) - np.log(self._per_s))]
        probability = np.exp(log - log.max())
        probability /= probability.sum()
        at_arrival, numbers = probability[:-1], np.arange(len(probability))
        at_arrival = at_arrival / at_arrival.sum()
        return LoadPoint(
            in_flight=float(probability @ numbers),
            ttft_ms=float(at_arrival @ self._ttft),
            tpot_ms=float(at_arrival @ self._tpot),
            goodput_share=float(at_arrival @ self._within_limits),
        )

    def goodput(self) -> float:
        """Return the most requests per second of which the share `GOOD` keeps to the limits."""
        low, high = 0.0, MAX_UTILIZATION * self.max_per_s
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            load = self.at(middle)
            low, high = (
                (middle, high)
                if load and load.goodput_share >= MIN_GOODPUT_SHARE
                else (low, middle)
            )
        return low
