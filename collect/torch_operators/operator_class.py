"""How torch runs the operators of one kernel."""

from collections.abc import Callable
from dataclasses import dataclass

from foretune.kernel import Launch
from foretune.values import FrozenParameters


@dataclass(frozen=True, kw_only=True)
class OperatorClass:
    """How to run the operators of one kernel, given problem and configuration.

    Attributes:
        cannot_run: returns why torch cannot run an operator; "" if it can.
        memory_bytes: returns its approximate peak memory in bytes.
        build: returns a call that runs it on a device of torch.
    """

    cannot_run: Callable[[FrozenParameters, FrozenParameters], str]
    memory_bytes: Callable[[FrozenParameters, FrozenParameters], float]
    build: Callable[[FrozenParameters, FrozenParameters, str], Launch]
