"""Poisson arrivals: requests in flight and their latency.

A replica kept at n requests in flight finishes X(n) per second. With random arrivals at rate r, the
number in flight is a birth-death chain with P(n) proportional to rⁿ / (X(1) … X(n)) (the
flow-equivalent server of Chandy, Herzog and Woo, IBM Journal of Research and Development 19, 1975).
An arriving request finds n others with the same probability, and takes as long as one of n + 1
does.
"""

from dataclasses import dataclass

import numpy as np

from foretune.plan.serve.requirements import Requirements

MIN_GOODPUT_SHARE = 0.9
"""Share of requests that must meet the latency limits, as in DistServe's goodput (Zhong et al.,
arXiv:2401.09670)."""
MAX_UTILIZATION = 0.99
"""Maximum utilization of a replica; above it, queues grow without bound."""
MAX_QUEUE = 2000
"""Maximum number of waiting requests in the chain."""
BISECTIONS = 14


@dataclass(frozen=True)
class LoadPoint:
    """A replica at a request rate.

    ``in_flight`` and both latencies are means; ``goodput_share`` of the requests meet both latency
    limits.
    """

    in_flight: float
    ttft_ms: float
    tpot_ms: float
    goodput_share: float


class LoadCurve:
    """A replica's latencies at any load, interpolated between planned loads.

    ``in_flight`` must ascend; ``osl`` is the number of tokens of an answer.
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
        # Throughput does not fall with more requests in flight.
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
        """Return the latencies at ``rate`` requests per second; None if they pile up."""
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
        """Return the highest rate at which `MIN_GOODPUT_SHARE` of requests meet the limits."""
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
