"""The result of compiling one configuration, as a worker process sends it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from foretune.measurement import Status
from foretune.space import Configuration


@dataclass(frozen=True)
class CompileResult:
    """The result of compiling one configuration.

    ``status`` is ``ok``, ``invalid`` (too large to launch on the target), ``compile_error`` or
    ``timeout``; ``error`` is the reason on one line; ``static`` has features of the code by their
    names in `FEATURES`. ``compile_s`` is NaN if the compiler died or timed out. ``cached`` is true
    if Triton's cache already had the code, in the folder that ``hash`` names.
    """

    config: Configuration
    status: Status
    error: str = ""
    static: Mapping[str, float] = field(default_factory=dict)
    compile_s: float = math.nan
    cached: bool = False
    hash: str = ""

    @property
    def ok(self) -> bool:
        """Whether it compiled and can be launched."""
        return self.status is Status.OK
