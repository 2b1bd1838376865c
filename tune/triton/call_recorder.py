"""Writes calls of decorated kernels to a file, to tune them ahead of use.

The file has one line of JSON per problem: the kernel, its arguments without the contents of
tensors, and the grid of every configuration.
"""

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from foretune.collect.compiled.arguments import Tensor, describe
from foretune.errors import ForetuneWarning, OutputError, UsageError
from foretune.files import parse_json, read_bytes, translate_read_errors
from foretune.tune.triton.descriptors import is_descriptor

RECORD_VARIABLE = "FORETUNE_RECORD_CALLS"
"""Environment variable with the file to which calls of new problems are added."""
JSON_TYPES = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class RecordedCall:
    """A call without the contents of its tensors.

    Attributes:
        kernel: ``module:name`` of the decorated function.
        args: positional arguments, with a `Tensor` description for each tensor.
        kwargs: arguments by name.
        grid: programs per dimension, or a grid per configuration.
    """

    kernel: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    grid: tuple[int, ...] | Mapping[str, tuple[int, ...]]

    def to_line(self) -> str:
        """Return the call as a line of JSON.

        Raises:
            UsageError: an argument has no JSON form.
        """
        fields = {
            "kernel": self.kernel,
            "args": [_to_json(a) for a in self.args],
            "kwargs": {n: _to_json(a) for n, a in self.kwargs.items()},
            "grid": self.grid,
        }
        return json.dumps(fields)

    @classmethod
    def from_line(cls, json_line: str) -> "RecordedCall":
        """Return the call that `to_line` wrote.

        Raises:
            UsageError: the line is no recorded call.
        """
        with translate_read_errors(json_line[:60], UsageError, "is no recorded call: {}"):
            data = parse_json(json_line)
            kwargs = {str(n): _from_json(a) for n, a in data["kwargs"].items()}
            grid = data["grid"]
            sizes = {k: _grid(v) for k, v in grid.items()} if type(grid) is dict else _grid(grid)
            return cls(str(data["kernel"]), tuple(map(_from_json, data["args"])), kwargs, sizes)

    @property
    def text(self) -> str:
        """The arguments as text."""
        named = [*self.args, *(f"{n}={_short_text(v)}" for n, v in self.kwargs.items())]
        return " ".join(map(_short_text, named))

    def programs(self, knobs: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the grid of a configuration with these constants.

        Raises:
            UsageError: the configuration was not recorded with the call.
        """
        if isinstance(self.grid, tuple):
            return self.grid
        if (which := _grid_key(knobs)) not in self.grid:
            raise UsageError(
                f"{which} is new since the calls of {self.kernel} were recorded: record them again"
            )
        return self.grid[which]


def record_if_requested(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    named: Mapping[str, Any],
    configs: Sequence[triton.Config],
) -> None:
    """Record a call if `RECORD_VARIABLE` names a file; warn if that fails."""
    if not (path := os.environ.get(RECORD_VARIABLE)):
        return
    name = f"{function.__module__}:{function.__qualname__}"
    try:
        append_call(Path(path), make_recorded_call(name, args, kwargs, named, configs))
    except Exception as e:  # the grid is a user's function
        warnings.warn(f"a call of {name} was not recorded: {e}", ForetuneWarning, stacklevel=2)


def make_recorded_call(
    kernel: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    named: Mapping[str, Any],
    configs: Sequence[triton.Config],
) -> RecordedCall:
    """Return the recorded form of a call.

    ``kernel`` is ``module:name``; ``kwargs`` has the ``grid``; ``named`` are all arguments by name.
    """
    grid = kwargs.get("grid") or (1,)
    sizes: Any = (
        {_grid_key(c.kwargs): _grid(grid({**named, **c.all_kwargs()})) for c in configs}
        if callable(grid)
        else _grid(grid)
    )
    rest = {n: describe(v) for n, v in kwargs.items() if n not in ("grid", "warmup")}
    return RecordedCall(kernel, tuple(map(describe, args)), rest, sizes)


def append_call(path: Path, call: RecordedCall) -> None:
    """Add a call to a file; processes may share it.

    Raises:
        OutputError: the file cannot be written.
        UsageError: an argument cannot be written down.
    """
    line = call.to_line()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as e:
        raise OutputError(f"calls cannot be added to {path}: {e.strerror}") from e


def read_calls(path: str | os.PathLike[str]) -> list[RecordedCall]:
    """Return the distinct calls in a file, in file order.

    Raises:
        UsageError: the file does not exist, or a line is no recorded call.
    """
    with translate_read_errors(
        path, UsageError, f"cannot be read: record calls with {RECORD_VARIABLE}=FILE ({{}})"
    ):
        lines = read_bytes(path).decode("utf-8").splitlines()
    return [RecordedCall.from_line(line) for line in dict.fromkeys(filter(str.strip, lines))]


def allocate_argument(argument: Any, device: Any) -> Any:
    """Return an argument with memory: random floats, zeros for integers."""
    import torch

    if isinstance(argument, tuple):
        return tuple(allocate_argument(part, device) for part in argument)
    if is_descriptor(argument):
        argument.base = allocate_argument(argument.base, device)
        return argument
    if not isinstance(argument, Tensor):
        return argument
    dtype = getattr(torch, argument.element)
    reach = sum((n - 1) * s for n, s in zip(argument.shape, argument.strides, strict=True))
    offset = argument.address // dtype.itemsize
    memory = torch.zeros(max(offset + reach + 1, 1), dtype=dtype, device=device)
    if dtype.is_floating_point:
        memory.copy_(torch.randn(len(memory), device=device))
    return memory.as_strided(argument.shape, argument.strides, offset)


def _to_json(argument: Any) -> Any:
    if isinstance(argument, JSON_TYPES):
        return argument
    if isinstance(argument, Tensor):
        layout = {"shape": argument.shape, "strides": argument.strides}
        return {"tensor": argument.element, **layout, "address": argument.address}
    if isinstance(argument, tuple):
        return {"tuple": [_to_json(part) for part in argument]}
    if is_descriptor(argument):
        how = {"block_shape": list(argument.block_shape), "padding": argument.padding}
        return {"descriptor": _to_json(argument.base), **how}
    if isinstance(argument, triton.language.dtype):
        return {"dtype": argument.name}
    raise UsageError(f"an argument of {type(argument).__name__} cannot be written down")


def _from_json(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    if "tuple" in data:
        return tuple(map(_from_json, data["tuple"]))
    if "dtype" in data:
        return triton.language.dtype(data["dtype"])
    if "descriptor" in data:
        from triton.tools.tensor_descriptor import TensorDescriptor

        base = _from_json(data["descriptor"])
        size = list(base.shape), list(base.strides)
        return TensorDescriptor(base, *size, data["block_shape"], data["padding"])
    shape, strides = _grid(data["shape"]), _grid(data["strides"])
    return Tensor(str(data["tensor"]), shape, strides, int(data["address"]))


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
