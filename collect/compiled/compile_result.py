"""The result of compiling one configuration, as a worker process sends it."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foretune.errors import UsageError
from foretune.measurement import Status
from foretune.space import Configuration
from foretune.values import plain_value

MAX_ERROR_LENGTH = 300
"""Maximum characters kept of a compiler's message."""
_PTXAS = re.compile(r"^ptxas\S* .*?(?:fatal|error)\s*: (?!Ptx assembly aborted)(.+)$", re.MULTILINE)


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


def shown_configuration(config: Mapping[str, Any]) -> Configuration:
    """Return a configuration to print: values such as None or Triton's types become text."""
    values = {}
    for name, value in config.items():
        try:
            values[name] = plain_value(name, value)
        except UsageError:
            values[name] = str(value)
    return Configuration(values)


def error_reason(error: BaseException) -> str:
    """Return the type of an error of Triton's, and its reason on one line.

    Triton quotes the code before the reason; if a marker below the code ends the message, the
    reason is the error's cause. The assembler ptxas has messages of its own in between.
    """
    text = str(error)
    if found := _PTXAS.search(text):
        return f"{type(error).__name__}: {found[1]}"[:MAX_ERROR_LENGTH]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = lines[-1] if lines else ""
    has_reason = re.search(r"\w", reason)
    if not has_reason and error.__cause__ is not None:
        return error_reason(error.__cause__)
    return (
        f"{type(error).__name__}: {reason}"[:MAX_ERROR_LENGTH] if reason else type(error).__name__
    )
