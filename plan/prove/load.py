"""What a server is asked for: lengths, requests in flight or arriving, and their number."""

from dataclasses import dataclass

import numpy as np

from foretune.errors import UsageError
from foretune.plan.describe.layout import Workload
from foretune.plan.engine.requests import Requests

WAVES = 3
"""Requests of a run per request in flight."""
MIN_REQUESTS = 4
"""Least requests of a run."""
MAX_REQUESTS = 512
"""Most requests of a run in which requests arrive at random."""
OPEN_LOOP_S = 30.0
"""Seconds in which the requests of such a run arrive."""


@dataclass(frozen=True)
class Load:
    """A load on one server.

    A closed loop keeps ``concurrency`` requests in flight: each that ends is replaced at once. An
    open loop sends requests at random moments, ``rate`` per second, whatever the server does.

    Attributes:
        workload: tokens per request.
        concurrency: requests in flight; 0 in an open loop.
        rate: requests per second; 0 in a closed loop.
    """

    workload: Workload
    concurrency: int = 0
    rate: float = 0.0

    def __post_init__(self) -> None:
        if (self.concurrency > 0) == (self.rate > 0):
            raise UsageError("a load has either requests in flight, or requests per second")

    @property
    def name(self) -> str:
        """The load, as in tables."""
        return f"{self.concurrency} at once" if self.concurrency else f"{self.rate:g} per s"

    @property
    def key(self) -> str:
        """The load, as in names of metrics."""
        return f"c{self.concurrency}" if self.concurrency else f"r{self.rate:g}"

    @property
    def count(self) -> int:
        """Requests of one run."""
        if self.concurrency:
            return max(WAVES * self.concurrency, MIN_REQUESTS)
        return int(np.clip(round(OPEN_LOOP_S * self.rate), MIN_REQUESTS, MAX_REQUESTS))

    def requests(self, seed: int) -> Requests:
        """Return the requests of a run, as the simulator and the load generator take them.

        In an open loop, requests arrive at random moments that depend on ``seed`` alone. So do
        lengths that differ.
        """
        if self.rate:
            return Requests.arriving_of(self.workload, self.count, per_s=self.rate, seed=seed)
        return Requests.in_flight_of(
            self.workload, self.count, in_flight=self.concurrency, seed=seed
        )
