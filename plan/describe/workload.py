"""Request lengths and offloading."""

from dataclasses import dataclass

from foretune.errors import ProblemError, UsageError


@dataclass(frozen=True)
class Workload:
    """Requests of one length.

    Raises ProblemError if a length is out of range.

    Attributes:
        isl: input tokens per request, including ``prefix``.
        osl: output tokens per request.
        prefix: input tokens already cached.
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
        """Input tokens to prefill."""
        return self.isl - self.prefix

    @property
    def last_context(self) -> int:
        """Cached tokens when a request ends."""
        return self.isl + self.osl

    @property
    def mean_context(self) -> float:
        """Cached tokens of a request halfway through its output."""
        return self.isl + self.osl / 2


@dataclass(frozen=True)
class Offload:
    """Data in host memory while a deployment serves, in GiB per GPU.

    Raises UsageError if a value is negative or not finite.

    Attributes:
        weights_gib: maximum of a GPU's layer weights; they are read in every step.
        cache_gib: cache of prefixes, fetched when a request needs them.
    """

    weights_gib: float = 0.0
    cache_gib: float = 0.0

    def __post_init__(self) -> None:
        for value in (self.weights_gib, self.cache_gib):
            if not 0 <= value < float("inf"):
                raise UsageError(f"cannot offload {value:g} GiB to host memory: give 0 or more")

    def __str__(self) -> str:
        kinds = ((self.weights_gib, "weights"), (self.cache_gib, "cached prefixes"))
        named = [f"{gib:g} GiB of {what} per GPU" for gib, what in kinds if gib]
        return " and ".join(named) or "nothing"

    def __bool__(self) -> bool:
        return self.weights_gib > 0 or self.cache_gib > 0
