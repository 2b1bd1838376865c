"""Offload: what of a deployment lies in the host's memory."""

from dataclasses import dataclass

from foretune.errors import UsageError


@dataclass(frozen=True)
class Offload:
    """What lies in the host's memory while a deployment serves, GiB per GPU.

    Attributes:
        weights_gib: most of a GPU's weights of layers; they are read again in every step.
        cache_gib: of keys and values of prefixes, which come back when a request needs them.

    Raises:
        UsageError: less than nothing, or no number.
    """

    weights_gib: float = 0.0
    cache_gib: float = 0.0

    def __post_init__(self) -> None:
        for value in (self.weights_gib, self.cache_gib):
            if not 0 <= value < float("inf"):
                raise UsageError(f"{value:g} GiB in the host's memory: give 0 or more")

    def __str__(self) -> str:
        kinds = ((self.weights_gib, "weights"), (self.cache_gib, "cached prefixes"))
        named = [f"{gib:g} GiB of {what} per GPU" for gib, what in kinds if gib]
        return " and ".join(named) or "nothing"

    def __bool__(self) -> bool:
        return self.weights_gib > 0 or self.cache_gib > 0
