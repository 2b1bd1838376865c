"""Tensor descriptors (TMA): arguments whose block shape a configuration's hook sets.

Triton compiles for the block shape, so the hook runs before compilation. A hook writes into the
caller's descriptors, so compilation ahead of a launch uses copies.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import triton

from foretune.collect.compiled.arguments import describe

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""


def is_descriptor(value: Any) -> bool:
    """Whether ``value`` is a tensor descriptor of Triton's or Gluon's."""
    return hasattr(value, "base") and hasattr(value, "block_shape")


def underlying_tensor(value: Any) -> Any:
    """Return the tensor below a descriptor; other values unchanged."""
    return value.base if is_descriptor(value) else value


def arguments_after_hook(
    config: triton.Config, arg_names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Arguments:
    """Return the arguments after the hook of ``config`` ran on copies of the descriptors.

    The hook sees tensors without memory and may raise any error. Without descriptors or a hook,
    the arguments are returned unchanged.
    """
    given = {**dict(zip(arg_names, args, strict=False)), **kwargs}
    copies = {n: copy.copy(v) for n, v in given.items() if is_descriptor(v)}
    if config.pre_hook is None or not copies:
        return tuple(args), dict(kwargs)
    seen = {n: v if n == "grid" else describe(v) for n, v in given.items()}
    config.pre_hook({**seen, **copies, **config.all_kwargs()})
    named = zip(arg_names, args, strict=False)
    return tuple(copies.get(n, v) for n, v in named), {
        n: copies.get(n, v) for n, v in kwargs.items()
    }
