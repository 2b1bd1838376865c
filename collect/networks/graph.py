"""Reads an exported graph: its operators, how often each runs, and the memory it needs."""

from collections import Counter
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from foretune.collect.networks.operators import HOST, Call, NetworkOperator, operator_of
from foretune.errors import ForetuneError, UsageError
from foretune.files import require_regular_file
from foretune.kernel import Launch
from foretune.problem import Problem
from foretune.space import Configuration

SUFFIX = ".pt2"


@dataclass(frozen=True)
class Network:
    """A network for one batch size.

    Attributes:
        name: name of its file.
        batch: first size of its first input.
        operators: distinct operator -> how often it runs. The last is the host's work.
        weight_bytes: bytes of parameters, buffers and constants.
        activation_bytes: largest sum of live inputs and intermediate results.
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
        line = next(iter(str(e).splitlines()), type(e).__name__)
        raise ForetuneError(f"{path} is no graph of torch.export.save: {line}") from e
    return network_of(program, Path(path).name.removesuffix(SUFFIX), batch, threads)


def network_of(
    program: torch.export.ExportedProgram, name: str, batch: int | None = None, threads: int = 1
) -> Network:
    """Return the network of an exported program; as `read_network`."""
    module = program.module()
    if program.example_inputs is None:
        raise UsageError(f"{name} has no example inputs: export it with torch.export.export")
    args, kwargs = program.example_inputs
    if not isinstance(kwargs, dict):
        args, kwargs = program.example_inputs, {}
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
    counts = Counter(operator_of(call, threads, view) for call, view in recorder.calls)
    real = [torch.zeros(x.shape, dtype=x.dtype) if _is_tensor(x) else x for x in fake]
    host = _host_work(program.module(), real, threads)
    weights = {_storage(x): x.untyped_storage().nbytes() for x in _constants(module)}
    sizes = [x.shape[0] for x in fake if _is_tensor(x) and x.dim()]
    memory = sum(weights.values()), recorder.peak_bytes()
    return Network(name, int(sizes[0]) if sizes else 1, {**counts, host: 1}, *memory)


class _Recorder(torch.fx.Interpreter):
    """Runs a graph on fake tensors; keeps its calls and the life of every result."""

    def __init__(self, module: torch.fx.GraphModule, inputs: list[Any]) -> None:
        super().__init__(module)
        self.calls: list[tuple[Call, bool]] = []
        self._bytes: dict[int, int] = {}
        self._born: dict[int, int] = {}
        self._died: dict[int, int] = {}
        self._kept: list[Any] = [inputs]  # so that no storage's address is used twice
        self._constants = {_storage(x) for x in _constants(module)}
        self._see(inputs, 0)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call and record it."""
        made = super().call_function(target, args, kwargs)
        step = len(self.calls) + 1
        self._see((args, kwargs), step)
        self._see(made, step)
        if isinstance(target, torch._ops.OpOverload):
            read = {_storage(x) for x in tree_leaves((args, kwargs)) if _is_tensor(x)}
            results = [x for x in tree_leaves(made) if _is_tensor(x)]
            shares = all(_storage(x) in read for x in results)
            is_view = shares and not target._schema.is_mutable  # or it returns no tensor
            self.calls.append((Call.of(target, args, kwargs), is_view))
        return made

    def output(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Results live until the end, and so do inputs, which the caller holds."""
        self._see((args, self._kept[0]), len(self.calls) + 1)
        return super().output(target, args, kwargs)

    def peak_bytes(self) -> int:
        """Return the largest sum of results that live at once."""
        change = [0] * (len(self.calls) + 3)
        for key, size in self._bytes.items():
            change[self._born[key]] += size
            change[self._died[key] + 1] -= size
        live = peak = 0
        for step in change:
            live += step
            peak = max(peak, live)
        return peak

    def _see(self, values: Any, step: int) -> None:
        self._kept.append(values)
        for tensor in filter(_is_tensor, tree_leaves(values)):
            if (key := _storage(tensor)) not in self._constants:
                self._bytes[key] = int(tensor.untyped_storage().nbytes())
                self._born.setdefault(key, step)
                self._died[key] = step


def _host_work(module: torch.fx.GraphModule, inputs: list[Any], threads: int) -> NetworkOperator:
    """Return the graph's own Python code as an operator: its calls do nothing."""
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    for node in calls:
        node.target = lambda *args, **kwargs: None
    module.recompile()
    weights = sum(node.op == "get_attr" for node in module.graph.nodes)

    def build() -> Launch:
        return lambda: module(*inputs)

    problem = Problem(calls=len(calls), weights=weights)
    return NetworkOperator(HOST, problem, Configuration(threads=threads), build)


def _fake(mode: FakeTensorMode, value: Any, batch: int | None) -> Any:
    if not _is_tensor(value):
        return value
    if batch is not None and value.dim():
        value = value.new_empty((batch, *value.shape[1:]))
    return mode.from_tensor(value)


def _constants(module: torch.fx.GraphModule) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
