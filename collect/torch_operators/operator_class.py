"""What each kernel of the table says of its operators in torch."""

from collections.abc import Callable
from dataclasses import dataclass

from foretune.kernel import Launch
from foretune.values import FrozenParameters


@dataclass(frozen=True, kw_only=True)
class OperatorClass:
    """How to run the operators of one kernel, given problem and configuration.

    ``cannot_run`` returns why torch cannot run one ("" if it can), ``memory_bytes`` its approximate
    peak memory, ``build`` a call on a device.
    """

    cannot_run: Callable[[FrozenParameters, FrozenParameters], str]
    memory_bytes: Callable[[FrozenParameters, FrozenParameters], float]
    build: Callable[[FrozenParameters, FrozenParameters, str], Launch]
