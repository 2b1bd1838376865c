"""Triton's configurations and ours: the same knobs, written for a compiler and for a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import triton

from foretune.errors import UnknownName, UsageError
from foretune.space import Configuration, SearchSpace

LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Knobs of every Triton kernel; the others are its own constants."""


def to_triton_configs(
    configs: "Sequence[triton.Config] | SearchSpace", arg_names: Sequence[str]
) -> "list[triton.Config] | Any":
    """Return what Triton takes: of a search space, all its configurations.

    A list is returned as it is: others may hold on to it.

    Args:
        configs: what to choose from.
        arg_names: of the kernel.

    Raises:
        SpaceError: the space has no configuration.
        UnknownName: it has a parameter that is no argument of the kernel.
        UsageError: the list holds something else than configurations.
    """
    if isinstance(configs, SearchSpace):
        for name in configs.names:
            if name not in (*arg_names, *LAUNCH_OPTIONS):
                raise UnknownName("parameter of the space", name, (*arg_names, *LAUNCH_OPTIONS))
        return [_triton_config(dict(config)) for config in configs]
    wrong = [c for c in configs or () if not isinstance(c, triton.Config)]
    if wrong or isinstance(configs, Mapping):
        raise UsageError(
            f"configs holds {wrong[0] if wrong else configs!r}: give a list of triton.Config, or a "
            "foretune.SearchSpace"
        )
    return configs


def to_configuration(config: triton.Config) -> Configuration:
    """Return ``config`` for a table: what is neither number nor text is written as its `repr`."""
    values = {n: _plain_value(v) for n, v in config.all_kwargs().items() if v is not None}
    if config.pre_hook is not None:  # it may set up what the knobs do not say
        values["pre_hook"] = getattr(config.pre_hook, "__qualname__", repr(config.pre_hook))
    return Configuration(values)


def _triton_config(values: dict[str, Any]) -> triton.Config:
    launch = {name: values.pop(name) for name in LAUNCH_OPTIONS if name in values}
    return triton.Config(values, **launch)


def _plain_value(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else repr(value)
