"""Keys of calls, the problem of a call that needs a choice, and the hash of a kernel's source."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import triton
from triton.runtime.jit import JITFunction

from foretune.collect.versions import toolchain
from foretune.device import Device
from foretune.errors import describe_error
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.code_hash import function_code
from foretune.tune.store import Subject
from foretune.tune.triton.runtime import current_device_index, device_at
from foretune.values import Value

Key = tuple[Any, ...]


class CachedChoice(NamedTuple):
    """The choice for one problem; invalid if stock Triton's ``cache`` changed."""

    config: triton.Config
    knobs: Mapping[str, Any]  # its keyword arguments for the kernel
    key: Key  # the problem in stock Triton's ``cache``
    cache_entry: triton.Config  # the entry of ``cache`` at that time


@dataclass(frozen=True, eq=False, slots=True)
class CallPlan:
    """Computes the key of calls with the same types of arguments.

    ``key`` identifies the problem of ``(args, kwargs)``, and returns None for other types;
    ``entries`` are the choices by key.
    """

    key: Callable[[tuple[Any, ...], dict[str, Any]], Key | None]
    entries: dict[Key, CachedChoice] = field(default_factory=dict)


class UntunedCall(NamedTuple):
    """A call of a problem without a choice."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    plan: CallPlan
    problem_key: Key  # the problem among the calls with this plan
    key: Key  # the problem in stock Triton's ``cache``; coarser

    @property
    def plan_and_key(self) -> tuple[CallPlan, Key]:
        """Identifies the problem among all calls."""
        return self.plan, self.problem_key


def make_plan(
    arg_names: Sequence[str],
    keys: Sequence[str],
    parameters: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    classes: bool = True,
    buckets: Mapping[str, Any] = MappingProxyType({}),
) -> CallPlan:
    """Return the plan for calls like this one.

    ``parameters`` is Triton's description of each argument, by name. ``classes`` distinguishes
    constants, alignment and devices, which stock Triton's key does not. ``buckets`` maps a key
    argument to a function from its value to its bucket.
    """
    named = {name: f"kwargs[{name!r}]" for name in kwargs if name in arg_names}
    given = {**{name: f"a{i}" for i, name in enumerate(arg_names[: len(args)])}, **named}
    values = {**dict(zip(arg_names, args, strict=False)), **kwargs}
    scope: dict[str, Any] = {f"bucket_{name}": function for name, function in buckets.items()}
    checks = _type_checks(args, kwargs, given.values(), [values[name] for name in given], scope)
    for name in [n for n in given if is_descriptor(values[n])]:
        given[name], values[name] = f"{given[name]}.base", values[name].base
    read = [f"bucket_{n}({given[n]})" for n in given if n in keys and n in buckets]
    read += _classes(given, values, {*keys} - {*buckets}, parameters) if classes else []
    for name, expression in given.items():
        read += [expression] if name in keys and name not in buckets else []
        read += [f"{expression}.dtype"] if hasattr(values[name], "dtype") else []
    source = f"def key(args, kwargs):\n{checks}    return ({', '.join(read)}{',' * bool(read)})"
    exec(compile(source, "<the key of a call>", "exec"), scope)
    return CallPlan(scope["key"])


def _type_checks(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    expressions: Iterable[str],
    values: Sequence[Any],
    scope: dict[str, Any],
) -> str:
    """Return code that unpacks arguments, and returns None if their types differ from these."""
    counts = [f"len(args) != {len(args)}", f"len(kwargs) != {len(kwargs)}"]
    counts += [f"{name!r} not in kwargs" for name in kwargs]
    scope |= {f"t{i}": type(value) for i, value in enumerate(values)}
    types = [f"type({expression}) is not t{i}" for i, expression in enumerate(expressions)]
    unpack = f"    {''.join(f'a{i}, ' for i in range(len(args)))}= args\n" if args else ""
    tests = f"    if {' or '.join(types)}: return None\n" if types else ""
    return f"    if {' or '.join(counts)}: return None\n{unpack}{tests}"


def _classes(
    given: Mapping[str, str],
    values: Mapping[str, Any],
    keys: Set[str],
    parameters: Mapping[str, Any],
) -> list[str]:
    """Return expressions of what Triton also compiles for: constants, ones, alignment, device."""
    read, addresses = [], []
    for name, expression in given.items():
        parameter, value = parameters.get(name), values[name]
        if name in keys:
            continue
        if is_constant(parameter):
            if not hasattr(value, "dtype"):
                read.append(expression if _hashable(value) else f"repr({expression})")
        elif hasattr(value, "data_ptr") and aligns(parameter):
            addresses.append(f"{expression}.data_ptr()")
        elif type(value) is int and specializes(parameter):
            divisible = f"{expression} & 15 == 0" if aligns(parameter) else "0"
            read.append(f"2 if {expression} == 1 else {divisible}")
    if addresses:  # usually 16 divides all of them, which is found out first
        named = " | ".join(f"(p{i} := {address})" for i, address in enumerate(addresses))
        each = "".join(f"p{i} & 15 == 0, " for i in range(len(addresses)))
        read.append(f"({named}) & 15 and ({each})")
    on_device = (e for name, e in given.items() if hasattr(values[name], "get_device"))
    return [*read, *(f"{expression}.get_device()" for expression in islice(on_device, 1))]


def is_constant(parameter: Any) -> bool:
    """Whether an argument is a constant of the compiled code."""
    return bool(getattr(parameter, "is_constexpr", False))


def specializes(parameter: Any) -> bool:
    """Whether Triton specializes code on an argument's value."""
    return not getattr(parameter, "do_not_specialize", False)


def aligns(parameter: Any) -> bool:
    """Whether Triton specializes code on divisibility by 16."""
    return specializes(parameter) and not getattr(
        parameter, "do_not_specialize_on_alignment", False
    )


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@dataclass(frozen=True)
class Call:
    """A call that needs a configuration; its grid is a tuple or a function of the arguments.

    ``problem`` has the values of key arguments and constants, dtypes, and ``specialized``: the
    arguments that are 1 or divisible by 16. ``function`` is the kernel below the tuner, None if it
    cannot be compiled here.
    """

    kernel: str
    source: str
    problem: Problem
    arguments: Mapping[str, Any]
    device: Device
    grid: tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]] | None
    function: Any = None

    @cached_property
    def subject(self) -> Subject:
        """The function, device and versions under which results are stored."""
        return Subject(self.kernel, self.source, self.device.name, toolchain("gpu"))

    def programs(self, knobs: Mapping[str, Any]) -> float:
        """Return the number of programs of a configuration; NaN if unknown."""
        try:
            grid = self.grid({**self.arguments, **knobs}) if callable(self.grid) else self.grid
            return float(math.prod(map(int, grid))) if grid else math.nan
        except Exception:  # the user's function may need more arguments
            return math.nan

    def success(
        self, config: Configuration, time_ms: float, samples_ms: Sequence[float], **more: Any
    ) -> Measurement:
        """Return a successful measurement; ``more`` are further fields."""
        more |= {"time_ms": time_ms, "time_ms_samples": tuple(sorted(samples_ms))}
        return self._measurement(config, Status.OK, **more)

    def failure(
        self, config: Configuration, status: Status, reason: str | BaseException
    ) -> Measurement:
        """Return a failed measurement."""
        error = describe_error(reason) if isinstance(reason, BaseException) else reason
        return self._measurement(config, status, error=error)

    def _measurement(self, config: Configuration, status: Status, **more: Any) -> Measurement:
        return Measurement(
            self.kernel,
            self.problem,
            config,
            self.device.name,
            status,
            environment=self.subject.versions,
            **more,
        )


def make_call(
    function: Any,
    keys: Sequence[str],
    named: Mapping[str, Any],
    bucket: Callable[[str, Any], Any] | None = None,
    **tags: str,
) -> Call:
    """Return a call of the undecorated kernel ``function``; see `problem_from_arguments`.

    ``named`` has the arguments by name, and ``grid``; other entries are ignored. ``tags`` are
    further parameters of the problem (`Options.problem_tags`).
    """
    arguments = {n: v for n, v in named.items() if n in function.arg_names}
    problem = Problem(problem_from_arguments(function, keys, arguments, bucket), **tags)
    device, grid = device_at(current_device_index()), named.get("grid")
    return Call(function.__name__, source_hash(function), problem, arguments, device, grid)


def problem_from_arguments(
    function: Any,
    keys: Sequence[str],
    arguments: Mapping[str, Any],
    bucket: Callable[[str, Any], Any] | None = None,
) -> Problem:
    """Return the problem of a call of the undecorated kernel ``function``.

    It has the values of ``keys`` and of constants, and the dtypes of tensors. ``bucket`` maps name
    and value of a key argument to its bucket.
    """
    parameters = triton_parameters(function)
    problem: dict[str, Value] = {}
    special: list[str] = []
    for name in function.arg_names:
        if name not in arguments:
            continue
        parameter, value = parameters.get(name), underlying_tensor(arguments[name])
        if hasattr(value, "dtype"):
            problem[f"{name}.dtype"] = str(value.dtype).removeprefix("torch.")
        elif name in keys or is_constant(parameter):
            problem[name] = plain_value(bucket(name, value) if bucket and name in keys else value)
        if not is_constant(parameter) and (how := _specialization(value, parameter)):
            special.append(f"{name}:{how}")
    problem["specialized"] = " ".join(special)
    return Problem(problem)


def is_descriptor(value: Any) -> bool:
    """Whether ``value`` is a tensor descriptor of Triton's or Gluon's."""
    return hasattr(value, "base") and hasattr(value, "block_shape")


def underlying_tensor(value: Any) -> Any:
    """Return the tensor below a descriptor; other values unchanged."""
    return value.base if is_descriptor(value) else value


def undecorated_kernel(fn: Any) -> Any:
    """Return the kernel below its decorators: Triton's `JITFunction`, or the interpreter's."""
    while not isinstance(fn, JITFunction) and hasattr(fn, "fn") and hasattr(fn.fn, "arg_names"):
        fn = fn.fn
    return fn


def triton_parameters(function: Any) -> dict[str, Any]:
    """Return Triton's description of each argument, by name; none in the interpreter."""
    return {p.name: p for p in getattr(function, "params", ())}


def _specialization(value: Any, parameter: Any) -> str:
    """Return the class of values on which Triton specializes this argument."""
    if type(value) is int and value == 1:
        return "1" if specializes(parameter) else ""
    number = value.data_ptr() if hasattr(value, "data_ptr") else value
    return "16" if type(number) is int and number % 16 == 0 and aligns(parameter) else ""


def plain_value(value: Any) -> Value:
    """Return a value as a table can hold it: a number, text or its `repr`."""
    if isinstance(value, float) and value != value:
        return "nan"
    return value if isinstance(value, (bool, int, float, str)) else repr(value)


_HASHES: "WeakKeyDictionary[FunctionType, str]" = WeakKeyDictionary()


def source_hash(function: Any) -> str:
    """Return the hash (16 hexadecimal digits) of a ``@triton.jit`` function and all it calls.

    Comments, docstrings and the configurations of an autotuner do not change it.
    """
    python = function.fn
    if python not in _HASHES:
        parts = sorted(set(_source_parts(python, set())))
        _HASHES[python] = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return _HASHES[python]


def _source_parts(python: FunctionType, seen: set[FunctionType]) -> Iterator[str]:
    """Yield the code and constants that ``python`` depends on."""
    seen.add(python)
    yield function_code(python)
    for name, value in _references(python):
        called = getattr(value, "fn", None)
        if isinstance(called, FunctionType):
            if called not in seen and not called.__module__.startswith("triton."):
                yield from _source_parts(called, seen)
        elif isinstance(constant := getattr(value, "value", value), (bool, int, float, str)):
            yield f"{name} = {constant!r}"


def _references(python: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals, closure variables and module members that a function uses."""
    names = python.__code__.co_names
    scope = {n: python.__globals__[n] for n in names if n in python.__globals__}
    cells = zip(python.__code__.co_freevars, python.__closure__ or (), strict=True)
    scope |= {name: cell.cell_contents for name, cell in cells}
    for name, value in scope.items():
        if isinstance(value, ModuleType):
            if not value.__name__.startswith("triton"):
                yield from ((n, getattr(value, n)) for n in names if hasattr(value, n))
        else:
            yield name, value
