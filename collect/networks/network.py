"""A network: the operators of an exported graph, how often each runs, and its memory."""

from collections import Counter
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from foretune.collect.networks.calls import Call
from foretune.collect.networks.operators import HOST, NetworkOperator, operator_of
from foretune.errors import ForetuneError, UsageError, first_line
from foretune.kernel import Launch
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.files import require_regular_file

SUFFIX = ".pt2"
"""How the names of exported graphs end."""


@dataclass(frozen=True)
class Network:
    """A network for one batch size, the first size of its first input.

    ``operators`` maps each distinct operator to how often it runs; the last is the host's work.
    ``weight_bytes`` counts parameters, buffers and constants, ``activation_bytes`` is the largest
    sum of live inputs and intermediate results.
    """

    name: str
    batch: int
    operators: dict[NetworkOperator, int]
    weight_bytes: int
    activation_bytes: int


def read_network(path: str | PathLike[str], batch: int | None = None, threads: int = 1) -> Network:
    """Return the network that ``torch.export.save`` wrote to ``path``.

    ``batch`` is the first size of every input, if the graph was exported with a dynamic one; None
    keeps that of the example inputs. ``threads`` are torch's. Raises ForetuneError if the file is
    damaged, UsageError if the graph was exported for one batch only.
    """
    try:
        program = torch.export.load(require_regular_file(path))
    except Exception as e:
        raise ForetuneError(f"{path} is not a graph from torch.export.save: {first_line(e)}") from e
    return network_of(program, Path(path).name.removesuffix(SUFFIX), batch, threads)


def network_of(
    program: torch.export.ExportedProgram, name: str, batch: int | None = None, threads: int = 1
) -> Network:
    """Return the network of an exported program; see `read_network`."""
    module = program.module()
    if program.example_inputs is None:
        raise UsageError(f"{name} has no example inputs: export it with torch.export.export")
    args, kwargs = program.example_inputs
    if not isinstance(kwargs, dict):
        args = program.example_inputs
        kwargs = {}

    # Run the graph on tensors without data, and record its calls.
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [_fake(mode, x, batch) for x in tree_leaves((args, kwargs))]
        recorder = _Recorder(module, fake)
        try:
            recorder.run(*fake)
        except (RuntimeError, AssertionError) as e:
            if batch is None:
                raise
            raise UsageError(
                f"{name} was exported for one batch: export it with dynamic_shapes, or leave "
                "--batch out"
            ) from e
    operators: dict[NetworkOperator, int] = Counter(
        operator_of(call, threads, is_view) for call, is_view in recorder.calls
    )
    real = [torch.zeros(x.shape, dtype=x.dtype) if _is_tensor(x) else x for x in fake]
    host = _host_work(program.module(), real, threads)

    first_sizes = [x.shape[0] for x in fake if _is_tensor(x) and x.dim()]
    bytes_of_storage = {_storage(x): x.untyped_storage().nbytes() for x in _constants(module)}
    return Network(
        name=name,
        batch=int(first_sizes[0]) if first_sizes else 1,
        operators={**operators, host: 1},
        weight_bytes=sum(bytes_of_storage.values()),
        activation_bytes=recorder.peak_bytes(),
    )


class _Recorder(torch.fx.Interpreter):
    """Runs a graph on fake tensors; records its calls and the lifetime of every result."""

    def __init__(self, module: torch.fx.GraphModule, inputs: list[Any]) -> None:
        super().__init__(module)
        self.calls: list[tuple[Call, bool]] = []
        self._bytes: dict[int, int] = {}
        self._born: dict[int, int] = {}
        self._died: dict[int, int] = {}
        # All results are kept, so that no storage's address is used twice.
        self._kept: list[Any] = [inputs]
        self._constants = {_storage(x) for x in _constants(module)}
        self._see(inputs, step=0)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call on fake tensors, and record it if it is one of torch's operators."""
        result = super().call_function(target, args, kwargs)
        step = len(self.calls) + 1
        self._see((args, kwargs), step)
        self._see(result, step)
        if isinstance(target, torch._ops.OpOverload):
            is_view = _is_view(target, (args, kwargs), result)
            self.calls.append((Call.of(target, args, kwargs), is_view))
        return result

    def output(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Results live until the end, and so do inputs, which the caller holds."""
        self._see((args, self._kept[0]), len(self.calls) + 1)
        return super().output(target, args, kwargs)

    def peak_bytes(self) -> int:
        """Return the largest sum of bytes that are live at once."""
        # How many bytes come and go in each step: steps from 0 to the output's, and one after it.
        change = [0] * (len(self.calls) + 3)
        for key, size in self._bytes.items():
            change[self._born[key]] += size
            change[self._died[key] + 1] -= size

        live = 0
        peak = 0
        for difference in change:
            live += difference
            peak = max(peak, live)
        return peak

    def _see(self, values: Any, step: int) -> None:
        """Note that the tensors among ``values`` are live in a step."""
        self._kept.append(values)
        for tensor in filter(_is_tensor, tree_leaves(values)):
            key = _storage(tensor)
            if key in self._constants:
                continue
            self._bytes[key] = int(tensor.untyped_storage().nbytes())
            self._born.setdefault(key, step)
            self._died[key] = step


def _is_view(target: Any, arguments: Any, result: Any) -> bool:
    """Return whether all results share memory with an argument, and none is changed."""
    read = {_storage(x) for x in tree_leaves(arguments) if _is_tensor(x)}
    shares_memory = all(_storage(x) in read for x in tree_leaves(result) if _is_tensor(x))
    return shares_memory and not target._schema.is_mutable


def _host_work(module: torch.fx.GraphModule, inputs: list[Any], threads: int) -> NetworkOperator:
    """Return the graph's own Python code as an operator: its calls do nothing."""
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    for node in calls:
        node.target = lambda *args, **kwargs: None
    module.recompile()
    weights = [node for node in module.graph.nodes if node.op == "get_attr"]

    def build() -> Launch:
        return lambda: module(*inputs)

    problem = Problem(calls=len(calls), weights=len(weights))
    return NetworkOperator(
        kernel=HOST, problem=problem, config=Configuration(threads=threads), build=build
    )


def _fake(mode: FakeTensorMode, value: Any, batch: int | None) -> Any:
    """Return a tensor without data, with another first size if ``batch`` is given."""
    if not _is_tensor(value):
        return value
    if batch is not None and value.dim():
        value = value.new_empty((batch, *value.shape[1:]))
    return mode.from_tensor(value)


def _constants(module: torch.fx.GraphModule) -> list[torch.Tensor]:
    """Return parameters and buffers, which live all the time."""
    return [*module.parameters(), *module.buffers()]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _storage(tensor: torch.Tensor) -> int:
    """Return a key of the memory that a tensor uses; views of it have the same."""
    return int(tensor.untyped_storage()._cdata)
