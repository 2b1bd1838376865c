"""How an engine fills its steps, and what its own work costs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """What the processor does for every step, on each stage.

    Scheduling, preparing inputs and handling the tokens of every request are Python in all three
    engines. The defaults are what TensorRT-LLM's PyTorch flow takes, see `benchmarks/README.md`.

    Attributes:
        step_ms: of a step.
        request_ms: of each request in it.
        beside: whether it runs while the GPU computes the step before (overlap scheduling).
    """

    step_ms: float = 1.0
    request_ms: float = 0.025
    beside: bool = True

    def ms(self, gpu_ms: float, requests: int) -> float:
        """Return how long a step of ``requests`` takes whose GPU needs ``gpu_ms``."""
        own = self.step_ms + self.request_ms * requests
        return max(gpu_ms, own) if self.beside else gpu_ms + own


@dataclass(frozen=True)
class Scheduler:
    """Limits of one attention-DP group.

    Attributes:
        step_tokens: most tokens of a step.
        batch: most requests of a step; a pipeline has one step per stage under way.
        cache_tokens: that the cache holds, of all requests in flight.
        chunked: whether a prompt may be read in several steps; else it waits for one with room.
        host: what its own work costs.
        graphs: sizes that steps which only write answers are padded to; empty pads none.
        drafted: tokens that are guessed per request and step, and checked in the next.
        accepted: tokens that a request gains per step, on average.
    """

    step_tokens: int
    batch: int
    cache_tokens: float
    chunked: bool = True
    host: Host = Host()  # noqa: RUF009  # immutable
    graphs: tuple[int, ...] = ()
    drafted: int = 0
    accepted: float = 1.0

    def padded(self, requests: int) -> int:
        """Return the size of the graph that runs a step of ``requests``."""
        s=min((size for size in self.graphs if size >= requests), default=requests); return s if s <= self.batch else requests
