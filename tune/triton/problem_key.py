"""What makes two calls the same problem."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from triton.runtime.jit import JITFunction

from foretune.collect.versions import toolchain
from foretune.device import Device
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import Subject
from foretune.tune.triton.descriptors import is_descriptor, underlying_tensor
from foretune.tune.triton.kernel_source import source_hash
from foretune.tune.triton.runtime import current_device_index, device_at
from foretune.values import Value

CallKey = tuple[Any, ...]


class CallPlan:
    """Reads the key of calls with the same types of arguments.

    Attributes:
        key: from ``(args, kwargs)`` of a call to what tells its problem from others.
        entries: what was decided, by key.
    """

    __slots__ = ("entries", "key")

    def __init__(self, key: Callable[[tuple[Any, ...], dict[str, Any]], CallKey]) -> None:
        self.key = key
        self.entries: dict[CallKey, Any] = {}


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

    Args:
        arg_names: of the kernel, in order.
        keys: those whose value is part of the problem.
        parameters: Triton's description of each argument, by name.
        args: positional arguments.
        kwargs: by name; ``grid`` and the like are none of the kernel's.
        classes: tell apart what stock Triton's key does not.
        buckets: key argument -> function of its value that says what it counts as.
    """
    named = {name: f"kwargs[{name!r}]" for name in kwargs if name in arg_names}
    given = {**{name: f"a{i}" for i, name in enumerate(arg_names[: len(args)])}, **named}
    values = {**dict(zip(arg_names, args, strict=False)), **kwargs}
    for name in [n for n in given if is_descriptor(values[n])]:
        given[name], values[name] = f"{given[name]}.base", values[name].base
    read: list[str] = []
    for name, expression in given.items():
        if name in keys and name in buckets:
            read.append(f"bucket_{name}({expression})")
        reads_value = name in keys and name not in buckets
        read += _key_expressions(
            expression, values[name], reads_value, parameters.get(name), classes
        )
    read += _device_expression(given, values) if classes else []
    unpack = f"    {''.join(f'a{i}, ' for i in range(len(args)))}= args\n" if args else ""
    source = f"def key(args, kwargs):\n{unpack}    return ({', '.join(read)}{',' * bool(read)})"
    scope: dict[str, Any] = {f"bucket_{name}": function for name, function in buckets.items()}
    exec(compile(source, "<the key of a call>", "exec"), scope)
    return CallPlan(scope["key"])


def plan_id(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what calls with the same plan have in common."""
    return (*map(type, args), *kwargs, *map(type, kwargs.values()))


def _key_expressions(
    expression: str, value: Any, is_key: bool, parameter: Any, classes: bool
) -> list[str]:
    """Return expressions of what varies of one argument and matters."""
    read = [expression] if is_key else []
    if hasattr(value, "dtype"):
        read.append(f"{expression}.dtype")
    if is_key or not classes:
        return read
    if is_constant(parameter):
        return read or [expression if _hashable(value) else f"repr({expression})"]
    if aligns(parameter) and hasattr(value, "data_ptr"):
        read.append(f"{expression}.data_ptr() & 15 == 0")
    if type(value) is int and specializes(parameter):
        read.append(f"{expression} == 1")
        if aligns(parameter):
            read.append(f"{expression} & 15 == 0")
    return read


def _device_expression(given: Mapping[str, str], values: Mapping[str, Any]) -> list[str]:
    on_device = (p for name, p in given.items() if hasattr(values[name], "get_device"))
    return [f"{expression}.get_device()" for expression in on_device][:1]


def is_constant(parameter: Any) -> bool:
    """Whether an argument is a constant of the compiled code."""
    return bool(getattr(parameter, "is_constexpr", False))


def specializes(parameter: Any) -> bool:
    """Whether Triton compiles other code for other classes of an argument's values."""
    return not getattr(parameter, "do_not_specialize", False)


def aligns(parameter: Any) -> bool:
    """Whether divisibility by 16 is such a class."""
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
    """A call whose configuration is to be chosen.

    Attributes:
        kernel: the function's name.
        source: identifies its code.
        problem: values of the key arguments and of constants, dtypes, and as ``specialized`` which
            arguments 16 divides or are 1.
        arguments: everything passed, by name.
        device: where.
        grid: as given: a tuple, or a function of the arguments.
        knobs: names of what is tuned.
    """

    kernel: str
    source: str
    problem: Problem
    arguments: Mapping[str, Any]
    device: Device
    grid: tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]] | None
    knobs: tuple[str, ...] = ()

    @cached_property
    def subject(self) -> Subject:
        """What is tuned, where, and with which versions."""
        return Subject(self.kernel, self.source, self.device.name, toolchain("gpu"))

    def programs(self, knobs: Mapping[str, Any]) -> float:
        """Return how many programs a configuration launches; NaN where the grid does not tell."""
        try:
            grid = self.grid({**self.arguments, **knobs}) if callable(self.grid) else self.grid
            count = 1
            for size in grid or ():
                count *= int(size)
        except Exception:  # somebody else's function, asked for something it need not know
            return float("nan")
        return float(count) if grid else float("nan")

    def success(
        self, config: Configuration, time_ms: float, samples_ms: Sequence[float], **more: Any
    ) -> Measurement:
        """Return the measurement of a configuration that ran; ``more`` are other fields of it."""
        samples = tuple(sorted(samples_ms))
        return self._measurement(
            config, Status.OK, time_ms=time_ms, time_ms_samples=samples, **more
        )

    def failure(self, config: Configuration, status: Status, reason: str) -> Measurement:
        """Return the measurement of a configuration that did not run."""
        first = next(iter(reason.splitlines()), "")
        return self._measurement(config, status, error=first[:300])

    def _measurement(self, config: Configuration, status: Status, **more: Any) -> Measurement:
        return Measurement(
            self.kernel, self.problem, config, self.device.name, status,
            environment=self.subject.versions, **more,
        )  # fmt: skip


def make_call(
    function: Any,
    keys: Sequence[str],
    named: Mapping[str, Any],
    kwargs: Mapping[str, Any],
    mode: str = "stall",
    bucket: Callable[[str, Any], Any] | None = None,
) -> Call:
    """Return a call of the plain kernel ``function``.

    Args:
        function: below all decorators.
        keys: names of the arguments whose values make a problem.
        named: positional arguments, by name.
        kwargs: arguments by name, and ``grid``.
        mode: how it is timed: among other work or in a graph, times are other ones.
        bucket: what the value of a key argument counts as.
    """
    arguments = {**named, **{n: v for n, v in kwargs.items() if n in function.arg_names}}
    problem = problem_from_arguments(function, keys, arguments, bucket)
    if mode != "stall":
        problem = Problem(problem, timed=mode)
    return Call(
        function.__name__,
        source_hash(function),
        problem,
        arguments,
        device_at(current_device_index()),
        kwargs.get("grid"),
    )


def problem_from_arguments(
    function: Any,
    keys: Sequence[str],
    arguments: Mapping[str, Any],
    bucket: Callable[[str, Any], Any] | None = None,
) -> Problem:
    """Return what tells calls of the plain kernel ``function`` apart.

    Args:
        function: below all decorators.
        keys: names of the arguments whose values count.
        arguments: by name; of tensors and constants the type or value always counts.
        bucket: what the value of a key argument counts as.
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
            problem[name] = _plain_value(bucket(name, value) if bucket and name in keys else value)
        if not is_constant(parameter) and (how := _specialization(value, parameter)):
            special.append(f"{name}:{how}")
    problem["specialized"] = " ".join(special)
    return Problem(problem)


def undecorated_kernel(fn: Any) -> Any:
    """Return the kernel below its decorators: Triton's `JITFunction`, or the interpreter's."""
    while not isinstance(fn, JITFunction) and hasattr(fn, "fn") and hasattr(fn.fn, "arg_names"):
        fn = fn.fn
    return fn


def triton_parameters(function: Any) -> dict[str, Any]:
    """Return Triton's description of each argument, by name; none in the interpreter."""
    return {p.name: p for p in getattr(function, "params", ())}


def _specialization(value: Any, parameter: Any) -> str:
    """Return the class of values for which Triton compiles this argument."""
    if not specializes(parameter):
        return ""
    if type(value) is int and value == 1:
        return "1"
    number = value.data_ptr() if hasattr(value, "data_ptr") else value
    divisible = type(number) is int and number % 16 == 0 and aligns(parameter)
    return "16" if divisible else ""


def _plain_value(value: Any) -> Value:
    if isinstance(value, float) and value != value:
        return "nan"
    return value if isinstance(value, (bool, int, float, str)) else repr(value)
