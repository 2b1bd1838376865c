"""The key of a call: which calls of a kernel have the same problem.

Every launch computes the key, so it must be fast. For the first call with certain types of
arguments, `make_plan` writes a Python function that reads only what matters, and compiles it::

    def key(args, kwargs):
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

from foretune.tune.triton.parameters import aligns, is_constant, is_descriptor, specializes

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

    parts = []
    for name, expression in expressions.items():
        if name in keys and name in buckets:
            parts.append(f"bucket_{name}({expression})")
    if classes:
        keys_by_value = {*keys} - {*buckets}
        parts += _class_expressions(expressions, values, keys_by_value, parameters)
    for name, expression in expressions.items():
        if name in keys and name not in buckets:
            parts.append(expression)
        if hasattr(values[name], "dtype"):
            parts.append(f"{expression}.dtype")

    key = "".join(f"{part}, " for part in parts)
    source = f"def key(args, kwargs):\n{checks}    return ({key})"
    exec(compile(source, "<the key of a call>", "exec"), scope)
    return CallPlan(scope["key"])


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
        if is_constant(parameter):
            if not hasattr(value, "dtype"):
                parts.append(expression if _is_hashable(value) else f"repr({expression})")
        elif hasattr(value, "data_ptr") and aligns(parameter):
            addresses.append(f"{expression}.data_ptr()")
        elif type(value) is int and specializes(parameter):
            divisible = f"{expression} & 15 == 0" if aligns(parameter) else "0"
            parts.append(f"2 if {expression} == 1 else {divisible}")

    # Usually 16 divides all addresses. One test finds that out; only otherwise each is tested.
    if addresses:
        any_bits = " | ".join(f"(p{i} := {address})" for i, address in enumerate(addresses))
        each = "".join(f"p{i} & 15 == 0, " for i in range(len(addresses)))
        parts.append(f"({any_bits}) & 15 and ({each})")

    # All tensors of a launch are on one device: ask the first.
    for name, expression in expressions.items():
        if hasattr(values[name], "get_device"):
            parts.append(f"{expression}.get_device()")
            break
    return parts


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
