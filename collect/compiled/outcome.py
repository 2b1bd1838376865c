"""What compiling one configuration came to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from foretune.measurement import Status
from foretune.space import Configuration


@dataclass(frozen=True)
class CompileResult:
    """One configuration, compiled or not.

    Attributes:
        config: the configuration.
        status: ``ok``; ``invalid`` (compiled, but too large for the target to launch);
            ``compile_error``; ``timeout``.
        error: the reason of a failure, one line.
        static: what the code shows, by the names in `FEATURES`; empty where it did not compile.
        compile_s: seconds it took; NaN where it did not compile.
        cached: whether Triton's cache had it already.
        hash: Triton's name of it, the folder in its cache; empty for the TTGIR tier.
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
