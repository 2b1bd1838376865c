"""What makes two calls the same problem, found in a microsecond.

Stock Triton's key is the values of the ``key`` arguments and every dtype. Which code runs depends
on more: constant arguments, pointers and integers that 16 divides, integers that are 1, the device.
All of it goes into the key of a call here. For calls whose arguments have the same types a function
is written once that reads just what varies.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from foretune.tune.triton.descriptors import is_descriptor

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
