"""Triton's configurations and ours: the same knobs, written for a compiler and for a table."""

from collections.abc import Sequence
from typing import Any

import triton

from foretune.space import Configuration, SearchSpace

LAUNCH = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Knobs of every Triton kernel; the others are its own constants."""


def configs_of(configs: "Sequence[triton.Config] | SearchSpace") -> "list[triton.Config] | Any":
    """Return what Triton takes: of a search space, all its configurations.

    A list is returned as it is: others may hold on to it.

    Raises:
        SpaceError: the space has no configuration.
    """
    if not isinstance(configs, SearchSpace):
        return configs
    return [_triton_config(dict(config)) for config in configs]


def configuration_of(config: triton.Config) -> Configuration:
    """Return ``config`` for a table: what is neither number nor text is written as its `repr`."""
    values = {n: _plain(v) for n, v in config.all_kwargs().items() if v is not None}
    if config.pre_hook is not None:  # it may set up what the knobs do not say
        values["pre_hook"] = getattr(config.pre_hook, "__qualname__", repr(config.pre_hook))
    return Configuration(values)


def _triton_config(values: dict[str, Any]) -> triton.Config:
    launch = {name: values.pop(name) for name in LAUNCH if name in values}
    return triton.Config(values, **launch)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else repr(value)
