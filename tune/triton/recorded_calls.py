"""Calls of decorated kernels, written down: what to choose for before anybody waits.

A file holds a line of JSON per problem: the kernel, its arguments without their contents, and what
grid every configuration launches.
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
from foretune.decoding import decoding, parse_json, read_bytes
from foretune.errors import ForetuneWarning, OutputError, UsageError
from foretune.tune.triton.descriptors import is_descriptor

PLACE = "FORETUNE_RECORD_CALLS"
"""Environment variable: the file that calls of new problems are added to."""
PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class RecordedCall:
    """A call without the contents of its tensors.

    Attributes:
        kernel: ``module:name`` of the decorated function.
        args: positional arguments; tensors are described (`Tensor`).
        kwargs: arguments by name.
        grid: the programs of each direction, or what they are by configuration.
    """

    kernel: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    grid: tuple[int, ...] | Mapping[str, tuple[int, ...]]

    def line(self) -> str:
        """Return the call as a line of JSON.

        Raises:
            UsageError: an argument is nothing that can be written down.
        """
        fields = {
            "kernel": self.kernel,
            "args": [_plain(a) for a in self.args],
            "kwargs": {n: _plain(a) for n, a in self.kwargs.items()},
            "grid": self.grid,
        }
        return json.dumps(fields)

    @classmethod
    def of_line(cls, line: str) -> "RecordedCall":
        """Read what `line` wrote.

        Raises:
            UsageError: it is something else.
        """
        with decoding(line[:60], UsageError, "is no recorded call: {}"):
            data = parse_json(line)
            kwargs = {str(n): _argument(a) for n, a in data["kwargs"].items()}
            grid = data["grid"]
            sizes = {k: _grid(v) for k, v in grid.items()} if type(grid) is dict else _grid(grid)
            return cls(str(data["kernel"]), tuple(map(_argument, data["args"])), kwargs, sizes)

    @property
    def text(self) -> str:
        """The arguments, for people."""
        named = [*self.args, *(f"{n}={_short(v)}" for n, v in self.kwargs.items())]
        return " ".join(map(_short, named))

    def programs(self, knobs: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the grid of a configuration that has these constants.

        Raises:
            UsageError: it was not among the candidates when the call was recorded.
        """
        if isinstance(self.grid, tuple):
            return self.grid
        if (which := _named(knobs)) not in self.grid:
            raise UsageError(
                f"{which} is new since the calls of {self.kernel} were recorded: record them anew"
            )
        return self.grid[which]


def note(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    named: Mapping[str, Any],
    configs: Sequence[triton.Config],
) -> None:
    """Add a call of a decorated function to the file that the environment names, if it does.

    What cannot be written down is warned of (`ForetuneWarning`).
    """
    if not (place := os.environ.get(PLACE)):
        return
    name = f"{function.__module__}:{function.__qualname__}"
    try:
        write(Path(place), record(name, args, kwargs, named, configs))
    except Exception as e:  # the grid is somebody else's function
        warnings.warn(f"a call of {name} was not recorded: {e}", ForetuneWarning, stacklevel=2)


def record(
    kernel: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    named: Mapping[str, Any],
    configs: Sequence[triton.Config],
) -> RecordedCall:
    """Return a call as it is written down.

    Args:
        kernel: ``module:name``.
        args: positional arguments.
        kwargs: by name, ``grid`` among them.
        named: all arguments of the kernel by name.
        configs: the candidates.
    """
    grid = kwargs.get("grid") or (1,)
    sizes: Any = (
        {_named(c.kwargs): _grid(grid({**named, **c.all_kwargs()})) for c in configs}
        if callable(grid)
        else _grid(grid)
    )
    rest = {n: describe(v) for n, v in kwargs.items() if n not in ("grid", "warmup")}
    return RecordedCall(kernel, tuple(map(describe, args)), rest, sizes)


def write(path: Path, call: RecordedCall) -> None:
    """Add a call to a file; processes may share it.

    Raises:
        OutputError: the file cannot be written.
        UsageError: an argument cannot be written down.
    """
    line = call.line()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as e:
        raise OutputError(f"calls cannot be added to {path}: {e.strerror}") from e


def read_calls(path: str | os.PathLike[str]) -> list[RecordedCall]:
    """Return the different calls in a file, in the order in which they came.

    Raises:
        UsageError: there is no such file, or a line is no recorded call.
    """
    with decoding(path, UsageError, f"cannot be read: record calls with {PLACE}=FILE ({{}})"):
        lines = read_bytes(path).decode("utf-8").splitlines()
    return [RecordedCall.of_line(line) for line in dict.fromkeys(filter(str.strip, lines))]


def with_memory(argument: Any, device: Any) -> Any:
    """Return an argument that can be launched with: random numbers, integers of zero."""
    import torch

    if isinstance(argument, tuple):
        return tuple(with_memory(part, device) for part in argument)
    if is_descriptor(argument):
        argument.base = with_memory(argument.base, device)
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


def _plain(argument: Any) -> Any:
    if isinstance(argument, PLAIN):
        return argument
    if isinstance(argument, Tensor):
        layout = {"shape": argument.shape, "strides": argument.strides}
        return {"tensor": argument.element, **layout, "address": argument.address}
    if isinstance(argument, tuple):
        return {"tuple": [_plain(part) for part in argument]}
    if is_descriptor(argument):
        how = {"block_shape": list(argument.block_shape), "padding": argument.padding}
        return {"descriptor": _plain(argument.base), **how}
    if isinstance(argument, triton.language.dtype):
        return {"dtype": argument.name}
    raise UsageError(f"an argument of {type(argument).__name__} cannot be written down")


def _argument(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    if "tuple" in data:
        return tuple(map(_argument, data["tuple"]))
    if "dtype" in data:
        return triton.language.dtype(data["dtype"])
    if "descriptor" in data:
        from triton.tools.tensor_descriptor import TensorDescriptor

        base = _argument(data["descriptor"])
        size = list(base.shape), list(base.strides)
        return TensorDescriptor(base, *size, data["block_shape"], data["padding"])
    shape, strides = _grid(data["shape"]), _grid(data["strides"])
    return Tensor(str(data["tensor"]), shape, strides, int(data["address"]))


def _short(argument: Any) -> str:
    if is_descriptor(argument):
        return _short(argument.base)
    if isinstance(argument, Tensor):
        return f"{argument.element}[{'×'.join(map(str, argument.shape))}]"
    return str(argument)


def _named(knobs: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={knobs[name]}" for name in sorted(knobs))


def _grid(sizes: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in sizes)
