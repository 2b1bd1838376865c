"""Operators of a network: read from an exported graph, run in torch, stored as run-table rows."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from foretune.errors import ForetuneError, UsageError, first_line
from foretune.kernel import Launch
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.files import require_regular_file

MIN_SCALED = 16  # smallest size that neighbors change: smaller ones are filters, groups, or flags
FACTORS = (0.5, 2.0)  # sizes of neighbors, relative to the operator's own


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its contents; if it ``is_weight``, its first size is not the batch."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_weight: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorSpec":
        """Return the description of ``tensor``."""
        weight = isinstance(tensor, torch.nn.Parameter)
        return cls(
            tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())), tensor.dtype, weight
        )

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        return self.elements * self.dtype.itemsize

    def resized(self, shape: Iterable[int]) -> "TensorSpec":
        """Return a tensor of another shape whose dimensions are in the same order in memory."""
        sizes, strides, step = tuple(shape), [0] * len(self.shape), 1
        for i in sorted(range(len(sizes)), key=lambda i: (self.stride[i], -i)):
            strides[i], step = step, step * sizes[i]
        return replace(self, shape=sizes, stride=tuple(strides))

    def allocate(self, high: int = 1) -> torch.Tensor:
        """Return a tensor with random contents; integers are below ``high``."""
        last = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True) if n)
        if self.dtype.is_floating_point:
            flat = torch.randn(last + 1, dtype=self.dtype)
        elif self.dtype == torch.bool:
            flat = torch.ones(last + 1, dtype=self.dtype)
        else:
            flat = torch.randint(max(high, 1), (last + 1,), dtype=self.dtype)
        return flat.as_strided(self.shape, self.stride)

    def _on(self, device: str) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Call:
    """A call of ``target`` with positional and keyword arguments; tensors are `TensorSpec`."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Call":
        """Return the description of a call with real or fake tensors."""
        plain_args, plain_kwargs = tree_map(_plain, (args, kwargs))
        return cls(target, plain_args, plain_kwargs)

    @property
    def name(self) -> str:
        """The operator's name without namespace and overload: ``conv2d``."""
        return str(self.target).split(".")[1]

    @property
    def tensors(self) -> list[TensorSpec]:
        """All tensors among the arguments."""
        return [x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, TensorSpec)]

    @property
    def bytes(self) -> int:
        """Bytes of all tensors among the arguments."""
        return sum(t.bytes for t in self.tensors)

    def outputs(self) -> list[TensorSpec]:
        """Return the tensors that it returns, without computing them."""
        with _fake_mode():
            made = self._with(lambda t: t._on("cpu"))()
        return [TensorSpec.of(x) for x in tree_leaves(made) if isinstance(x, torch.Tensor)]

    def build(self) -> Launch:
        """Return the call on tensors with random contents; indices are below all first sizes."""
        rows = [t.shape[0] for t in self.tensors if t.shape and t.dtype.is_floating_point]
        return self._with(lambda t: t.allocate(min(rows, default=2)))

    def neighbors(self) -> Iterator["Call"]:
        """Yield the call with one size (or the batch) halved or doubled wherever it occurs."""
        batch = next((t.shape[0] for t in self.tensors if t.shape and not t.is_weight), 0)
        tried: list[Call] = []
        for factor in FACTORS:
            sizes = sorted({n for t in self.tensors for n in t.shape if n >= MIN_SCALED})
            tried += [self._replace_size(size, round(size * factor)) for size in sizes]
            if (other := round(batch * factor)) >= 1 and batch < MIN_SCALED:
                tried.append(self._replace_batch(batch, other))
        for call in tried:
            try:
                call.outputs()
            except (RuntimeError, ValueError, IndexError, TypeError):
                continue  # sizes that do not fit together
            yield call

    def _with(self, make: Callable[[TensorSpec], torch.Tensor]) -> Launch:
        target = self.target
        args, kwargs = tree_map_only(TensorSpec, make, (self.args, self.kwargs))
        return lambda: target(*args, **kwargs)

    def _replace_size(self, old: int, new: int) -> "Call":
        def change(x: Any) -> Any:
            if isinstance(x, TensorSpec):
                return x.resized(new if n == old else n for n in x.shape) if old in x.shape else x
            return new if type(x) is int and x == old else x

        return Call(self.target, *tree_map(change, (self.args, self.kwargs)))

    def _replace_batch(self, old: int, new: int) -> "Call":
        def change(x: Any) -> Any:
            if isinstance(x, TensorSpec) and not x.is_weight and x.shape[:1] == (old,):
                return x.resized((new, *x.shape[1:]))
            return x

        return Call(self.target, *tree_map(change, (self.args, self.kwargs)))


@cache  # making one takes longer than using it
def _fake_mode() -> FakeTensorMode:
    return FakeTensorMode()


def _plain(value: Any) -> Any:
    """Return a tensor's description; a symbolic size as a number; other values unchanged."""
    if isinstance(value, torch.Tensor):
        return TensorSpec.of(value)
    return int(value) if isinstance(value, torch.SymInt) else value


PRODUCTS = ("linear", "addmm", "mm", "bmm", "baddbmm", "matmul")
CONVOLUTIONS = ("conv1d", "conv2d")
NORMS = ("layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm")
ATTENTION = "scaled_dot_product_attention"
VIEW, HOST = "view", "host"
"""Kernels of operators that move no data, and of Python's work around all operators."""
FORMATS = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float64: "fp64",
}


@dataclass(frozen=True)
class NetworkOperator:
    """An operator of a network.

    ``kernel`` is the family that predicts it; operators without one of their own are
    ``elementwise`` with ``problem.op``. ``problem`` has its sizes, ``config`` number format and
    threads. ``build`` makes a launch with random tensors, which must run with ``config.threads``.
    ``call`` is the call in torch, None for the host's work.
    """

    kernel: str
    problem: Problem
    config: Configuration
    build: Callable[[], Launch] = field(compare=False, repr=False)
    call: Call | None = field(default=None, compare=False, repr=False)

    @property
    def bytes(self) -> int:
        """Bytes of its arguments."""
        return self.call.bytes if self.call else 0

    def neighbors(self) -> Iterator["NetworkOperator"]:
        """Yield operators of the same kind, with one size halved or doubled."""
        if self.call and self.kernel != VIEW:
            for call in self.call.neighbors():
                yield operator_of(call, int(self.config["threads"]))


def operator_of(call: Call, threads: int, is_view: bool = False) -> NetworkOperator:
    """Return the operator of ``call``; a view if its result shares memory with an argument."""
    if is_view:
        kernel, sizes = VIEW, {"op": call.name}
    else:
        kernel, sizes = next(filter(None, (describe(call) for describe in _KINDS)))
    kind = next((FORMATS[t.dtype] for t in call.tensors if t.dtype in FORMATS), "fp32")
    config = Configuration(format=kind, threads=threads)
    return NetworkOperator(kernel, Problem(**sizes), config, call.build, call)


_Description = tuple[str, dict[str, Any]] | None


def _product(call: Call) -> _Description:
    if call.name not in PRODUCTS:
        return None
    start = int(call.name in ("addmm", "baddbmm"))  # the added values come first
    first, second = call.tensors[start : start + 2]
    if min(len(first.shape), len(second.shape)) < 2:
        return None
    inner = first.shape[-1]
    outputs = second.shape[0] if call.name == "linear" else second.shape[-1]
    batch = prod(second.shape[:-2])
    rows = call.outputs()[0].elements // outputs // batch
    sizes = {"op": call.name, "batch": batch, "M": rows, "N": outputs, "K": inner}
    return "gemm", {**sizes, "contiguous": _contiguous(call)}


def _convolution(call: Call) -> _Description:
    if call.name not in CONVOLUTIONS:
        return None
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    image, weight, made = given["input"], given["weight"], call.outputs()[0]
    sizes = {
        "batch": image.shape[0],
        "in_channels": image.shape[1],
        "out_channels": weight.shape[0],
        "groups": given.get("groups", 1),
    }
    for name, values in (
        ("in", image.shape[2:]),
        ("out", made.shape[2:]),
        ("kernel", weight.shape[2:]),
        ("stride", given.get("stride", 1)),
        ("dil", given.get("dilation", 1)),
    ):
        sizes |= zip((f"{name}_h", f"{name}_w"), _pair(values), strict=True)
    return "convolution", {**sizes, "contiguous": _contiguous(call)}


def _attention(call: Call) -> _Description:
    if call.name != ATTENTION:
        return None
    query, keys = call.args[:2]
    is_causal = call.kwargs.get("is_causal", len(call.args) > 5 and call.args[5])
    batch, heads, tokens, dim = (1, *query.shape)[-4:]
    kernel = "attention_prefill" if is_causal else "attention_encoder"
    return kernel, {
        "batch": batch,
        "heads": heads,
        "kv_heads": (1, *keys.shape)[-3],
        "seq_len": tokens,
        "prefix_len": keys.shape[-2] - tokens,
        "head_dim": dim,
        "contiguous": _contiguous(call),
    }


def _norm(call: Call) -> _Description:
    image = call.tensors[0] if call.tensors else None
    if image is None or call.name not in (*NORMS, "softmax", "log_softmax"):
        return None
    columns = image.shape[-1]
    if call.name in ("batch_norm", "instance_norm", "group_norm"):
        columns = prod(image.shape[2:])
    kernel = "softmax" if "softmax" in call.name else "norm"
    sizes = {"op": call.name, "rows": image.elements // max(columns, 1), "columns": columns}
    return kernel, {**sizes, "contiguous": _contiguous(call)}


def _elementwise(call: Call) -> _Description:
    """Describe an operator that streams its operands, by its largest tensor without weights."""
    outputs, inputs = call.outputs(), [t for t in call.tensors if not t.is_weight]
    large = max((*outputs, *inputs), key=lambda t: t.elements)
    columns = large.shape[-1] if large.shape else 1
    return "elementwise", {
        "op": call.name,
        "rows": large.elements // max(columns, 1),
        "columns": columns,
        "read": sum(t.elements for t in inputs),
        "written": sum(t.elements for t in outputs),
        "contiguous": _contiguous(call),
    }


_KINDS = (_product, _convolution, _attention, _norm, _elementwise)


def _contiguous(call: Call) -> int:
    inputs: Iterable[TensorSpec] = (t for t in call.tensors if not t.is_weight)
    return int(all(t._on("meta").is_contiguous() for t in inputs))


def _pair(values: Any) -> tuple[int, int]:
    """Return height and width; one dimension counts as the width, with height 1."""
    if isinstance(values, int):
        return values, values
    return (1, *values)[-2:] if len(values) < 2 else tuple(values)[:2]


SUFFIX = ".pt2"


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
    """Runs a graph on fake tensors; records its calls and the lifetime of every result."""

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
        """Return the largest sum of bytes that are live at once."""
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
