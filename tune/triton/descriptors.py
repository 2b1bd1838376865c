"""Tensor descriptors (TMA): arguments that a configuration's hook gives their block shape.

Triton compiles for the block shape, so a hook must have run before its configuration is compiled,
and a hook writes into the caller's own descriptors. What is compiled ahead therefore sees copies.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import triton

from foretune.collect.compiled import describe

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Of a call: by position, by name."""


def is_descriptor(value: Any) -> bool:
    """Whether ``value`` is a tensor descriptor of Triton's or Gluon's."""
    return hasattr(value, "base") and hasattr(value, "block_shape")


def underlying_tensor(value: Any) -> Any:
    """Return the tensor that a descriptor is of; anything else as it is."""
    return value.base if is_descriptor(value) else value


def arguments_after_hook(
    config: triton.Config,
    arg_names: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Arguments:
    """Return the arguments as they are once the hook of ``config`` ran, the originals unchanged.

    Where there is no descriptor or no hook, these are the arguments themselves. The hook sees
    tensors without their memory, so it can spoil nothing.

    Raises:
        Exception: what the hook raises, which may want more than descriptors.
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
