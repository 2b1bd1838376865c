"""One implementation under judgment, alone in its process.

The expected output is not in this process, so it cannot be copied. Each call gets new values at the
addresses of the ones before, and calls that are timed together get different ones. So caching by
address, shape, value or the last input gives wrong outputs, or saves nothing. The judge times calls
by its own clock; this process's clock is only compared with it.
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from foretune.collect.side_effects import SideEffects
from foretune.collect.wrapped import values as arrays
from foretune.collect.wrapped.shared_memory import shared_memory
from foretune.collect.wrapped.special_values import KINDS_OF_SPECIAL_VALUES
from foretune.errors import MeasurementError, UnknownName
from foretune.registry import object_at
from foretune.support.identity import kind_of_index, type_of_column
from foretune.values import Value

_PRECISIONS = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "int8": "int8",
}
"""Name of an array's type -> precision of `Work`."""
PARAMETER = "the parameter"
BUFFER = "the buffer"
"""What a part of a function's own state is called, before its name."""


@runtime_checkable
class CodePerProblem(Protocol):
    """Code that is another function for each problem, such as a model of some sizes."""

    def for_problem(self, problem: Mapping[str, Value]) -> Callable[..., Any]:
        """Return the function for a problem."""
        ...


Code = str | Callable[..., Any] | CodePerProblem
"""A function, or its place: ``FILE.py:NAME`` or ``MODULE:NAME``."""


@dataclass(frozen=True)
class Output:
    """An array that a call returned or wrote, on the host, or a container without values.

    ``kind`` is its class and type of number, ``place`` where it is in the result.
    """

    kind: str
    values: np.ndarray
    place: str = ""


@dataclass(frozen=True)
class CallOutputs:
    """What a call returned, in order, and the arguments that it changed, by position.

    ``effects`` is what it does besides: its result shares memory with its arguments, for example.
    """

    returned: tuple[Output, ...]
    written: Mapping[int, Output]
    effects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timed:
    """Milliseconds of a number of calls together, by this process's clock."""

    own_ms: float
    calls: int


@dataclass(frozen=True)
class Work:
    """What a call has to do at least: bytes of inputs and outputs, and operations.

    ``operations`` is NaN if they cannot be counted; ``precision`` is that of the largest array:
    ``fp64``, ``fp32``, ``fp16``, ``bf16``, ``fp8`` or ``int8``; empty for other types.
    """

    bytes: int
    operations: float
    precision: str


class IsolatedImplementation:
    """Calls one implementation.

    ``code`` is loaded after the first inputs are made, so that it cannot replace the clock or the
    synchronization with a GPU. ``inputs`` returns the positional arguments of a call for a
    problem's parameters and ``seed``.
    """

    def __init__(self, code: Code, inputs: Code) -> None:
        self._code = code
        self._inputs = inputs
        self._make: Callable[..., Any] | None = None
        self._function: Callable[..., Any] | None = None
        self._problem: Mapping[str, Value] = {}
        self._clock = time.perf_counter_ns
        self._wait: Callable[[], None] = lambda: None  # a call on the host ends when it returns
        self._args: list[tuple[Any, ...]] = []
        self._before: list[Any] = []
        self._returned: list[Any] = []
        self._side_effects: SideEffects | None = None

    def load(self, problem: Mapping[str, Value], seed: int) -> str:
        """Make the inputs and load the code; return why its name is invalid, or ""."""
        try:
            self._make = _load(self._inputs, problem)
        except UnknownName:
            file, _, name = str(self._inputs).rpartition(":")
            return (
                f"{file} has no {name}({', '.join([*problem, 'seed'])}): write one, or give "
                "--inputs FILE.py:NAME"
            )
        try:
            self.prepare(problem, [seed])
        except UnknownName as e:
            return str(e)
        return ""

    def prepare(self, problem: Mapping[str, Value], seeds: Sequence[int], special: str = "") -> int:
        """Make the arguments of one call per seed; return the bytes of one call's arrays.

        ``special`` names the kind of special values that replace their fractions.
        """
        if self._make is None:
            self._make = _load(self._inputs, problem)
        self._returned = []

        # New values go to the addresses of the last ones, where the arrays have the same form.
        del self._args[len(seeds) :]
        for number, seed in enumerate(seeds):
            result = self._make(**problem, seed=seed)
            new = result if isinstance(result, tuple) else (result,)
            if special:
                draw = KINDS_OF_SPECIAL_VALUES[special].draw
                new = tuple(arrays.redraw(new, draw, seed))
            if number >= len(self._args):
                self._args.append(new)
            elif not _assign(self._args[number], new):
                self._args[number] = new

        # Copies tell later which arguments a call changed.
        self._before = [
            [arrays.copy_arrays(leaf) for leaf in arrays.leaves(args)] for args in self._args
        ]

        # The code comes after the inputs, so that it cannot replace what they need.
        is_for_another = isinstance(self._code, CodePerProblem) and self._problem != problem
        if self._side_effects is None:
            self._side_effects = SideEffects()
        if self._function is None or is_for_another:
            self._wait = _gpu_wait()
            self._function = _load(self._code, problem)
            self._problem = dict(problem)

        # A function may need more than its arguments, such as a gradient of its output.
        get_ready = getattr(self._function, "prepare", None)
        if isinstance(self._code, CodePerProblem) and get_ready is not None:
            get_ready(seeds)

        leaves = arrays.leaves(self._args[0])
        return sum(arrays.as_numpy(leaf).nbytes for leaf in leaves if arrays.is_array(leaf))

    def run(self) -> Timed:
        """Call the function once on each of the prepared arguments."""
        function = self._function
        clock = self._clock
        wait = self._wait
        assert function is not None
        assert self._side_effects is not None
        self._side_effects.before_call()
        wait()
        start = clock()
        returned = [function(*args) for args in self._args]
        wait()
        own_ms = (clock() - start) * 1e-6
        self._side_effects.after_call()
        self._returned = returned
        return Timed(own_ms=own_ms, calls=len(returned))

    def idle(self) -> None:
        """Do nothing; the judge times how long it takes to ask."""

    def work(self) -> Work:
        """Return what the first of the prepared calls has to do; it is called once more."""
        args = self._args[0]
        function = self._function
        assert function is not None
        torch = sys.modules.get("torch")
        operations = float("nan")
        if torch is None:
            returned = function(*args)
        else:
            from torch.utils.flop_counter import FlopCounterMode

            with FlopCounterMode(display=False) as counter:
                returned = function(*args)
            operations = float(counter.get_total_flops()) or operations
        moved = [
            leaf
            for value in (args, returned)
            for leaf in arrays.leaves(value)
            if arrays.is_array(leaf) and not isinstance(leaf, list)
        ]
        largest = max(moved, key=lambda leaf: leaf.nbytes, default=None)
        dtype = str(getattr(largest, "dtype", "")).removeprefix("torch.")
        return Work(
            bytes=sum(leaf.nbytes for leaf in moved),
            operations=operations,
            precision=_PRECISIONS.get(dtype, ""),
        )

    def outputs(self, number: int) -> CallOutputs:
        """Return the outputs of one of the last calls, which cannot know that it is checked."""
        assert self._side_effects is not None
        return self._outputs_of(number, self._side_effects.names())

    def all_outputs(self) -> list[CallOutputs]:
        """Return the outputs of all last calls."""
        assert self._side_effects is not None
        changes = self._side_effects.names()
        return [self._outputs_of(number, changes) for number in range(len(self._args))]

    def changed_state(self, problem: Mapping[str, Value], seeds: Sequence[int]) -> dict[str, Any]:
        """Return the parts of the function's own state that calls change, by name, on the host.

        A new function is made for it: all calls start from the same state. Code without a state
        that can be read has none.
        """
        if not isinstance(self._code, CodePerProblem):
            return {}
        self.prepare(problem, seeds)
        function = self._code.for_problem(problem)
        read_state = getattr(function, "state", None)
        if read_state is None:
            return {}
        if hasattr(function, "prepare"):
            function.prepare(seeds)
        before = read_state()
        for args in self._args:
            function(*args)
        return {
            name: value
            for name, value in read_state().items()
            if name not in before or not arrays.same_bits(value, before[name])
        }

    def _outputs_of(self, number: int, changes: Sequence[str]) -> CallOutputs:
        args = self._args[number]
        returned = self._returned[number]
        outputs = tuple(_outputs(returned, "the output")) if returned is not None else ()

        # Which arguments did the call write?
        now = list(arrays.leaves(args))
        before_and_after = zip(now, self._before[number], strict=True)
        changed = [
            i
            for i, (leaf, was) in enumerate(before_and_after)
            if arrays.is_array(leaf) and not arrays.same_bits(leaf, was)
        ]
        written = {i: _array_output(now[i], f"argument {i}") for i in changed}

        # Does its result share memory with its arguments, or with the call before?
        earlier = self._returned[number - 1] if number else None
        inputs = [leaf for leaf in now if arrays.is_array(leaf)]
        effects = {*shared_memory(returned, inputs, earlier), *changes}
        return CallOutputs(outputs, written, tuple(sorted(effects)))


def _assign(args: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
    """Copy new values into arrays, and return True; return False if other objects are new, too."""
    for value in arrays.leaves(new):
        # A generator or an object of a class has a state that is not copied.
        if not (arrays.is_array(value) or isinstance(value, arrays.IMMUTABLE_TYPES)):
            return False
    return arrays.assign_all(args, new)


def _outputs(value: Any, place: str) -> Iterator[Output]:
    """Yield the containers and arrays of a result, each with its place."""
    if arrays.is_array(value) or np.isscalar(value):
        yield _array_output(value, place)
        return
    parts = _parts(value)
    if parts is None:
        yield _array_output(value, place)
        return
    yield Output(_class_name(value), np.zeros(0), place)
    for name, inner in parts.items():
        yield from _outputs(inner, f"{place}[{name}]")


def _parts(value: Any) -> dict[str, Any] | None:
    """Return the parts of a container, table, masked array or sparse matrix; None for others."""
    if isinstance(value, Mapping):
        return {repr(key): value[key] for key in sorted(value, key=repr)}
    if isinstance(value, list | tuple):
        return {str(i): inner for i, inner in enumerate(value)}
    if isinstance(value, set | frozenset):
        return {str(i): inner for i, inner in enumerate(sorted(value, key=repr))}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: object.__getattribute__(value, f.name) for f in dataclasses.fields(value)}
    pandas, sparse = (sys.modules.get(name) for name in ("pandas", "scipy.sparse"))
    if pandas is not None and isinstance(value, pandas.DataFrame):
        columns = {
            f"{i} {name!r}": value.iloc[:, i].to_numpy() for i, name in enumerate(value.columns)
        }
        kinds = repr([(dtype, type_of_column(dtype)) for dtype in value.dtypes])
        return {
            "kind of columns": repr(kind_of_index(value.columns)),
            "types": kinds,
            **_labels(value),
            **columns,
        }
    if pandas is not None and isinstance(value, pandas.Series):
        kind = repr((value.dtype, type_of_column(value.dtype)))
        return {"type": kind, **_labels(value), f"values {value.name!r}": value.to_numpy()}
    if sparse is not None and sparse.issparse(value):
        matrix = value.tocsr().copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        shape = np.array(value.shape)
        return {"shape": shape, "i": matrix.indices, "p": matrix.indptr, "data": matrix.data}
    return None


def _labels(table: Any) -> dict[str, Any]:
    return {"kind of index": repr(kind_of_index(table.index)), "index": table.index.to_numpy()}


def _array_output(leaf: Any, place: str) -> Output:
    if isinstance(leaf, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(leaf)
        data = np.where(mask, np.zeros(1, leaf.dtype), np.ma.getdata(leaf))
        packed = np.stack([data, mask.astype(leaf.dtype)]) if data.dtype.kind in "biufc" else data
        return Output(_class_name(leaf), packed, place)
    values = np.array(arrays.as_numpy(leaf), copy=True)
    if values.dtype.kind == "O":  # their bytes are addresses
        if values.ndim == 0 and not isinstance(leaf, np.ndarray | np.generic | type(None)):
            raise MeasurementError(
                f"{place} is a {_class_name(leaf)}, which has no values to compare: return arrays"
            )
        values = np.array([repr(inner) for inner in values.ravel()]).reshape(values.shape)
    elif values.dtype.names:
        values = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
    if values.dtype.kind == "V":
        values = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
    return Output(_class_name(leaf), values, place)


def _class_name(value: Any) -> str:
    module = type(value).__module__
    name = type(value).__qualname__
    kind = f"{module}.{name}".removeprefix("builtins.")
    is_local = "<locals>" in name
    if not is_local and getattr(sys.modules.get(module), name, None) is not type(value):
        is_none = value is None
        kind = kind if is_none else f"what calls itself {kind}"
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return kind
    return " ".join([f"{kind} of {str(dtype).removeprefix('torch.')}", *_traits(value)])


def _traits(value: Any) -> list[str]:
    """Return what is unusual about a tensor: sparse, not on the host, or computed when read."""
    if not arrays.is_tensor(value):
        return []
    traits = []
    if str(value.layout) != "torch.strided":
        traits.append(f"as {value.layout}")
    if value.device.type != "cpu":
        traits.append(f"on {value.device.type}")
    if value.is_conj():
        traits.append("as lazy conjugate")
    if value.is_neg():
        traits.append("as lazy negation")
    return traits


def _gpu_wait() -> Callable[[], None]:
    """Return torch's GPU synchronization if the inputs loaded torch, else a no-op."""
    torch = sys.modules.get("torch")
    return torch.cuda.synchronize if torch and torch.cuda.is_available() else lambda: None


def _load(code: Code, problem: Mapping[str, Value]) -> Callable[..., Any]:
    if isinstance(code, str):
        return object_at(code)
    return code.for_problem(problem) if isinstance(code, CodePerProblem) else code
