"""Workloads: how long the requests of a deployment are."""

from dataclasses import dataclass

from foretune.errors import ProblemError


@dataclass(frozen=True)
class Workload:
    """Requests of one length.

    Attributes:
        isl: input tokens per request, ``prefix`` among them.
        osl: output tokens per request.
        prefix: input tokens whose keys and values are in the cache already.

    Raises:
        ProblemError: a length that no request can have.
    """

    isl: int
    osl: int
    prefix: int = 0

    def __post_init__(self) -> None:
        if self.isl < 1 or self.osl < 1:
            raise ProblemError(f"isl={self.isl}, osl={self.osl}: both must be at least 1 token")
        if not 0 <= self.prefix < self.isl:
            raise ProblemError(
                f"prefix={self.prefix} must lie between 0 and {self.isl - 1}: "
                "at least one input token is new"
            )

    @property
    def new_tokens(self) -> int:
        """Input tokens that a prefill must compute."""
        return self.isl - self.prefix

    @property
    def last_context(self) -> int:
        """Tokens in the cache when a request ends."""
        return self.isl + self.osl

    @property
    def mean_context(self) -> float:
        """Tokens in the cache of a request halfway through its output."""
        return self.isl + self.osl / 2
