"""Writes calls of decorated kernels to a file, to tune them ahead of use.

The file has one line of JSON per problem: the kernel, its arguments without the contents of
tensors, and the grid of every configuration.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from foretune.collect.compiled.arguments import Tensor, describe
from foretune.errors import UsageError, warn
from foretune.support.files import parse_json, read_bytes, translate_read_errors
from foretune.tune.triton.kernel import KernelCall
from foretune.tune.triton.parameters import is_descriptor, plain_argument

RECORD_VARIABLE = "FORETUNE_RECORD_CALLS"
"""Environment variable that names the file to which calls of new problems are added."""


@dataclass(frozen=True)
class RecordedCall:
    """A call without the contents of its tensors, each of which is a `Tensor` description.

    ``kernel`` is ``module:name`` of the decorated function, ``FILE.py:name`` of a script's own;
    ``grid`` has programs per dimension, or is one grid per configuration.
    """

    kernel: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    grid: tuple[int, ...] | Mapping[str, tuple[int, ...]]

    def to_line(self) -> str:
        """Return the call as a line of JSON; UsageError if an argument has no JSON form."""
        args = list(map(_encode, self.args))
        kwargs = {name: _encode(value) for name, value in self.kwargs.items()}
        return json.dumps({**vars(self), "args": args, "kwargs": kwargs})

    @classmethod
    def from_line(cls, json_line: str) -> "RecordedCall":
        """Return the call that `to_line` wrote; UsageError for another line."""
        with translate_read_errors(json_line[:60], UsageError, "is not a recorded call: {}"):
            data = parse_json(json_line)
            args = tuple(map(_decode, data["args"]))
            kwargs = {str(name): _decode(value) for name, value in data["kwargs"].items()}
            grid = data["grid"]
            sizes: tuple[int, ...] | dict[str, tuple[int, ...]]
            if type(grid) is dict:
                sizes = {key: _grid(programs) for key, programs in grid.items()}
            else:
                sizes = _grid(grid)
            return cls(str(data["kernel"]), args, kwargs, sizes)

    @property
    def text(self) -> str:
        """The arguments as text."""
        named = [*self.args, *(f"{n}={_short_text(v)}" for n, v in self.kwargs.items())]
        return " ".join(map(_short_text, named))

    def programs(self, knobs: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the grid of a configuration with these constants.

        Raises UsageError if the configuration was not recorded with the call.
        """
        if isinstance(self.grid, tuple):
            return self.grid
        if (which := _grid_key(knobs)) not in self.grid:
            raise UsageError(
                f"{which} is new since the calls of {self.kernel} were recorded: record them again"
            )
        return self.grid[which]


def record_if_requested(call: KernelCall, configs: Sequence[triton.Config]) -> None:
    """Add a call to the file in `RECORD_VARIABLE`, if set; warn if that fails."""
    if not (path := os.environ.get(RECORD_VARIABLE)):
        return
    function = call.tuner.base_fn
    module = function.__module__
    file = function.__code__.co_filename
    place = Path(file).resolve() if module == "__main__" and file.endswith(".py") else module
    name = f"{place}:{function.__qualname__}"
    try:
        line = _recorded(name, call, configs).to_line()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:  # processes may share it
            file.write(line + "\n")
    except Exception as e:  # the grid is a user's function
        warn(f"a call of {name} was not recorded: {e}")


def _recorded(name: str, call: KernelCall, configs: Sequence[triton.Config]) -> RecordedCall:
    """Return the description of a call, with the grid of every configuration."""
    grid = call.kwargs.get("grid") or (1,)
    sizes: Any
    if callable(grid):
        sizes = {}
        for config in configs:
            arguments = {**call.named, **config.all_kwargs()}
            sizes[_grid_key(config.kwargs)] = _grid(grid(arguments))
    else:
        sizes = _grid(grid)
    args = tuple(map(describe, call.args))
    kwargs = {n: describe(v) for n, v in call.kwargs.items() if n not in ("grid", "warmup")}
    return RecordedCall(name, args, kwargs, sizes)


def read_calls(path: str | os.PathLike[str]) -> list[RecordedCall]:
    """Return the distinct calls in a file, in file order; UsageError if a line is not a call."""
    with translate_read_errors(
        path, UsageError, f"cannot be read: record calls with {RECORD_VARIABLE}=FILE ({{}})"
    ):
        lines = read_bytes(path).decode("utf-8").splitlines()
    return [RecordedCall.from_line(line) for line in dict.fromkeys(filter(str.strip, lines))]


def _encode(argument: Any) -> Any:
    """Return an argument as JSON has it; UsageError if it has no form there."""
    if isinstance(argument, Tensor):
        layout = {"shape": argument.shape, "strides": argument.strides}
        return {"tensor": argument.element, **layout, "address": argument.address}
    if is_descriptor(argument):
        # A descriptor may show its tensor in another shape, such as all heads as rows.
        layout = {"shape": tuple(argument.shape), "strides": tuple(argument.strides)}
        how = {"block_shape": list(argument.block_shape), "padding": argument.padding}
        return {"descriptor": _encode(argument.base), **layout, **how}
    if isinstance(argument, triton.language.dtype):
        return {"dtype": argument.name}
    if isinstance(argument, tuple):
        return list(map(_encode, argument))
    if isinstance(argument, list):
        return {"list": list(map(_encode, argument))}

    value = plain_argument(argument)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(f"an argument of {type(argument).__name__} cannot be recorded")


def _decode(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(map(_decode, data))
    if not isinstance(data, dict):
        return data
    if "list" in data:
        return list(map(_decode, data["list"]))
    if "dtype" in data:
        return triton.language.dtype(data["dtype"])
    if "descriptor" in data:
        from triton.tools.tensor_descriptor import TensorDescriptor

        base = _decode(data["descriptor"])
        shape = list(_grid(data.get("shape", base.shape)))
        strides = list(_grid(data.get("strides", base.strides)))
        return TensorDescriptor(base, shape, strides, data["block_shape"], data["padding"])
    return Tensor(
        str(data["tensor"]), _grid(data["shape"]), _grid(data["strides"]), int(data["address"])
    )


def _short_text(argument: Any) -> str:
    if is_descriptor(argument):
        return _short_text(argument.base)
    if isinstance(argument, Tensor):
        return f"{argument.element}[{'×'.join(map(str, argument.shape))}]"
    return str(argument)


def _grid_key(knobs: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={knobs[name]}" for name in sorted(knobs))


def _grid(sizes: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in sizes)
