"""What a compiling process is asked for."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foretune.collect.compiled.targets import Target
from foretune.errors import UsageError


@dataclass(frozen=True)
class Order:
    """What all configurations of one batch have in common.

    Attributes:
        path: where modules are looked for, like ``sys.path``.
        kernel: ``module:attribute``.
        args: positional arguments, described.
        kwargs: the same by name.
        target: what to compile for.
        tier: ``full``, or ``ttgir`` for the first stages only.
        cache_dir: Triton's cache; empty for the one that is set.
    """

    path: tuple[str, ...]
    kernel: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Target
    tier: str
    cache_dir: str = ""


def load_kernel(reference: str) -> Any:
    """Return the kernel called ``module:attribute``.

    Raises:
        UsageError: there is none.
    """
    module, colon, attribute = reference.partition(":")
    if not colon or not module or not attribute:
        raise UsageError(f"kernel {reference!r}: give MODULE:NAME, like my_kernels:softmax")
    try:
        found = importlib.import_module(module)
    except ImportError as e:
        raise UsageError(f"module {module!r} cannot be imported here: {e}") from e
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"module {module!r} has no {attribute!r}")
        found = getattr(found, part)
    return found
