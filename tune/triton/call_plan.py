"""The problem key of a call: which calls of a kernel have the same problem.

Every launch computes it, so this must be fast. For the first call with certain types of
arguments, `make_plan` writes a Python function that reads only what matters, and compiles it::

    def problem_key(args, kwargs):
        if len(args) != 3 or len(kwargs) != 1 or 'grid' not in kwargs: return None
        a0, a1, a2, = args
        if type(a0) is not t0 or type(a1) is not t1 or type(a2) is not t2: return None
        return (a2, a0.dtype, a1.dtype,)
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import triton

from foretune.tune.triton.parameters import (
    aligns,
    is_constant,
    is_descriptor,
    plain_argument,
    specializes,
)

CONTAINERS = (tuple, list, dict, set, frozenset)
"""Constants whose parts have types of their own."""
Key = tuple[Any, ...]
"""Values that identify a problem: within one plan (problem key), or for stock Triton (stock key).

Stock Triton's ``cache`` has the values of key arguments and the dtypes. Triton also compiles for
constants, ones, alignment and devices, so a problem key is finer than a stock key."""


class CachedChoice(NamedTuple):
    """The choice for one problem; invalid if stock Triton's ``cache`` changed."""

    config: triton.Config
    knobs: Mapping[str, Any]  # its keyword arguments for the kernel
    stock_key: Key
    cache_entry: triton.Config  # the entry of ``cache`` at that time


@dataclass(frozen=True, eq=False, slots=True)
class CallPlan:
    """Computes the problem key of calls with the same types of arguments.

    ``problem_key`` identifies the problem of ``(args, kwargs)``, and returns None for other types;
    ``entries`` are the choices by problem key.
    """

    problem_key: Callable[[tuple[Any, ...], dict[str, Any]], Key | None]
    entries: dict[Key, CachedChoice] = field(default_factory=dict)


class KeyedCall(NamedTuple):
    """A call, and the keys of its problem."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    plan: CallPlan
    problem_key: Key
    stock_key: Key

    @property
    def problem_id(self) -> tuple[CallPlan, Key]:
        """Identifies the problem among all calls: plans may have equal problem keys."""
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
    # Each argument has an expression that reads it: a local variable, or an entry of kwargs.
    expressions = {name: f"a{i}" for i, name in enumerate(arg_names[: len(args)])}
    expressions |= {name: f"kwargs[{name!r}]" for name in kwargs if name in arg_names}
    values = {**dict(zip(arg_names, args, strict=False)), **kwargs}
    scope: dict[str, Any] = {f"bucket_{name}": function for name, function in buckets.items()}
    checks = _type_checks(args, kwargs, expressions, values, scope)

    # Of a descriptor, the tensor below it counts.
    for name in expressions:
        if is_descriptor(values[name]):
            expressions[name] = f"{expressions[name]}.base"
            values[name] = values[name].base

    # The parts of the key, each as an expression.
    parts = []
    for name, expression in expressions.items():
        if name in keys and name in buckets:
            parts.append(f"bucket_{name}({expression})")
    if classes:
        keys_by_value = {*keys} - {*buckets}
        scope["tuple_class"] = _tuple_class
        parts += _class_expressions(expressions, values, keys_by_value, parameters)
    for name, expression in expressions.items():
        if name in keys and name not in buckets:
            parts.append(expression)
        if hasattr(values[name], "dtype"):
            parts.append(f"{expression}.dtype")

    key_parts = "".join(f"{part}, " for part in parts)
    source = f"def problem_key(args, kwargs):\n{checks}    return ({key_parts})"
    exec(compile(source, "<the problem key of a call>", "exec"), scope)
    return CallPlan(scope["problem_key"])


def _type_checks(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    expressions: Mapping[str, str],
    values: Mapping[str, Any],
    scope: dict[str, Any],
) -> str:
    """Return code that unpacks arguments, and returns None if their types differ from these.

    The types go to ``scope``.
    """
    conditions = [f"len(args) != {len(args)}", f"len(kwargs) != {len(kwargs)}"]
    conditions += [f"{name!r} not in kwargs" for name in kwargs]
    lines = [f"    if {' or '.join(conditions)}: return None\n"]
    if args:
        variables = "".join(f"a{i}, " for i in range(len(args)))
        lines.append(f"    {variables}= args\n")

    type_conditions = []
    for i, (name, expression) in enumerate(expressions.items()):
        scope[f"t{i}"] = type(values[name])
        type_conditions.append(f"type({expression}) is not t{i}")
    if type_conditions:
        lines.append(f"    if {' or '.join(type_conditions)}: return None\n")
    return "".join(lines)


def _class_expressions(
    expressions: Mapping[str, str],
    values: Mapping[str, Any],
    keys: Set[str],
    parameters: Mapping[str, Any],
) -> list[str]:
    """Return expressions of what Triton also compiles for: constants, ones, alignment, device."""
    parts = []
    addresses = []
    for name, expression in expressions.items():
        parameter = parameters.get(name)
        value = values[name]
        if name in keys:
            continue
        if hasattr(value, "data_ptr"):
            if aligns(parameter) and not is_constant(parameter):
                addresses.append(f"{expression}.data_ptr()")
        elif value_class := _value_class(expression, value, parameter):
            parts.append(value_class)
    if addresses:
        parts.append(_alignment_of_addresses(addresses))

    # All tensors of a launch are on one device: ask the first.
    for name, expression in expressions.items():
        if hasattr(values[name], "get_device"):
            parts.append(f"{expression}.get_device()")
            break
    return parts


def _value_class(expression: str, value: Any, parameter: Any) -> str:
    """Return an expression of what Triton compiles for of a value; "" if only of its type."""
    if is_constant(parameter):
        return _constant_expression(expression, value)
    if type(value) is int and specializes(parameter):
        return _number_class(expression, is_aligned=aligns(parameter))
    return f"tuple_class({expression})" if isinstance(value, tuple) else ""


def _constant_expression(expression: str, value: Any) -> str:
    """Return an expression whose values are equal only if Triton compiles the same constant.

    The type of the constant itself is checked before. But the parts of a container may be other
    types in the next call: they may not be hashable, and 1, 1.0 and True are equal. Their text
    tells them apart.
    """
    is_plain = not isinstance(value, CONTAINERS) and _is_hashable(value)
    return expression if is_plain else f"repr({expression})"


def _number_class(expression: str, *, is_aligned: bool) -> str:
    """Return an expression of what Triton compiles for of a number.

    Its value is 2 for a one, which becomes a constant; else whether 16 divides the number, if
    ``is_aligned`` says that Triton distinguishes this.
    """
    divisible = f"{expression} & 15 == 0" if is_aligned else "0"
    return f"2 if {expression} == 1 else {divisible}"


def _tuple_class(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what Triton compiles for of an argument that is a tuple."""
    return tuple(map(_part_class, parts))


def _part_class(part: Any) -> Any:
    if isinstance(part, tuple):
        return _tuple_class(part)
    part = plain_argument(part)
    if hasattr(part, "data_ptr"):
        return str(part.dtype), part.data_ptr() & 15 == 0
    if type(part) is int:
        return int, part == 1, part & 15 == 0
    return type(part)


def _alignment_of_addresses(addresses: Sequence[str]) -> str:
    """Return an expression of which addresses 16 divides.

    Usually it divides all of them, so all their bits together are tested first: the value is then
    0. Only otherwise each address is tested, from the variables p0, p1, … of the first test::

        ((p0 := a0.data_ptr()) | (p1 := a1.data_ptr())) & 15 and (p0 & 15 == 0, p1 & 15 == 0, )
    """
    any_bits = " | ".join(f"(p{i} := {address})" for i, address in enumerate(addresses))
    each = "".join(f"p{i} & 15 == 0, " for i in range(len(addresses)))
    return f"({any_bits}) & 15 and ({each})"


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
