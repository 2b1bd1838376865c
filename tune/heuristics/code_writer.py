"""Generates a Python function without imports that maps a problem to a configuration."""

import keyword
import math
import re
import textwrap
from collections.abc import Container, Iterator, Sequence

from foretune.collect.compiled.arguments import DTYPES
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.heuristics.decision_tree import Equals, Leaf, Node, Question
from foretune.values import Value

_WIDTH = 100
_CONFIGURATION = "dict[str, int | float | bool | str]"
_RESERVED = {"dict", "float", "str", "_CONFIGURATIONS", "_TYPES"}
"""Names in the function's body, which arguments must not shadow."""


def write_source(
    title: str,
    notes: str,
    problems: Sequence[Problem],
    configs: Sequence[Configuration],
    tree: Node,
) -> str:
    """Return the source of a module with a function ``choose``.

    Args:
        title: first line of its docstring.
        notes: provenance, for the docstring.
        problems: the training problems, which define the arguments.
        configs: the configurations to choose from.
        tree: the decision tree; leaves are indices of ``configs``.
    """
    arguments = name_arguments(problems)
    types = _type_arguments(arguments, problems)
    lines = [
        '"""' + _escape_docstring(title), "", *textwrap.wrap(_escape_docstring(notes), _WIDTH),
        '"""', "", f"_CONFIGURATIONS: tuple[{_CONFIGURATION}, ...] = (",
        *(f"    {_dict(config)}," for config in configs),
        ")", *_type_table(types), "", "",
        *_signature(list(_parameters(arguments, problems, types))),
        '    """Return the configuration for a problem.',
        "",
        *(f"    {line}" for line in _describe_arguments(arguments, problems, types)),
        '    """',
        *(f"    {a} = _TYPES.get(str({a}), {a})" for a in types),
        *_body(tree, arguments, _boolean_names(problems), "    "),
    ]  # fmt: skip
    return "\n".join(line.rstrip() for line in lines) + "\n"


def name_arguments(problems: Sequence[Problem]) -> dict[str, str]:
    """Return the argument of each parameter of the problems; optional ones come last.

    A parameter that is the same in all problems, e.g. a data type, gets no argument.
    """
    fixed = _fixed(problems)
    names = [n for n in dict.fromkeys(n for p in problems for n in p) if n not in fixed]
    order = sorted(names, key=lambda n: any(n not in p for p in problems))
    arguments: dict[str, str] = {}
    for name in order:
        identifier = re.sub(r"[^A-Za-z0-9_]", "_", name)
        if (
            not identifier
            or identifier[0].isdigit()
            or keyword.iskeyword(identifier)
            or identifier in _RESERVED
        ):
            identifier = (
                f"{identifier}_" if identifier and not identifier[0].isdigit() else f"_{identifier}"
            )
        while identifier in arguments.values():
            identifier += "_"
        arguments[name] = identifier
    return arguments


def _fixed(problems: Sequence[Problem]) -> dict[str, Value]:
    """Return the parameters that all problems share."""
    first = problems[0]
    return {n: v for n, v in first.items() if all(n in p and p[n] == v for p in problems)}


def _signature(declared: list[str]) -> list[str]:
    """Return the function's signature, wrapped if it is too long."""
    line = f"def choose({', '.join(declared)}) -> {_CONFIGURATION}:"
    if len(line) <= _WIDTH:
        return [line]
    return [
        "def choose(",
        *(f"    {argument}," for argument in declared),
        f") -> {_CONFIGURATION}:",
    ]


def _type_arguments(
    arguments: dict[str, str], problems: Sequence[Problem]
) -> dict[str, set[Value]]:
    """Return the values of each argument that is an element type."""
    known = {*DTYPES, *DTYPES.values()}
    values = {a: {p[n] for p in problems if n in p} for n, a in arguments.items()}
    return {argument: found for argument, found in values.items() if found <= known}


def _type_table(types: dict[str, set[Value]]) -> list[str]:
    """Return the table from all names of element types to those of the problems."""
    used = sorted(map(str, set().union(*types.values())))
    table: dict[str, str] = {}
    for name in used:
        full = DTYPES.get(name, name)
        short = [each for each, meant in DTYPES.items() if meant == full]
        table |= {other: name for other in (full, f"torch.{full}", *short) if other not in used}
    entries = (f"    {other!r}: {name!r}," for other, name in table.items())
    return ["", "_TYPES = {", *entries, "}"] if table else []


def _parameters(
    arguments: dict[str, str], problems: Sequence[Problem], types: Container[str]
) -> Iterator[str]:
    for name, argument in arguments.items():
        if argument in types:
            yield f"{argument}: object" + " = None" * any(name not in p for p in problems)
            continue
        kinds = sorted({type(p[name]).__name__ for p in problems if name in p})
        if any(name not in p for p in problems):
            yield f"{argument}: {' | '.join([*kinds, 'None'])} = None"
        else:
            yield f"{argument}: {' | '.join(kinds)}"


def _describe_arguments(
    arguments: dict[str, str], problems: Sequence[Problem], types: Container[str]
) -> Iterator[str]:
    """Yield the measured range or values of each argument."""
    if arguments:
        yield "Measured with:"
    for name, argument in arguments.items():
        values = [p[name] for p in problems if name in p]
        numbers = [v for v in values if not isinstance(v, (str, bool))]
        distinct = list(dict.fromkeys(values))
        if len(distinct) > 1 and len(numbers) == len(values):
            values_text = f"{min(numbers)} … {max(numbers)}"
        else:
            values_text = ", ".join(map(str, distinct[:8])) + (", …" if len(distinct) > 8 else "")
        called = "" if name == argument else f" ({name})"
        names = "; a torch.dtype, or its name" if argument in types else ""
        yield from _list_item(f"{argument}{called}: {values_text}{names}")
    if fixed := _fixed(problems):
        yield "The same in all of them:"
        for name, value in fixed.items():
            yield from _list_item(f"{name}: {value}")


def _list_item(text: str) -> list[str]:
    """Return an entry of a list in a docstring."""
    return textwrap.wrap(
        _escape_docstring(text), _WIDTH - 4, initial_indent="    ", subsequent_indent="        ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _boolean_names(problems: Sequence[Problem]) -> set[str]:
    """Return the names of parameters that are booleans in every problem."""
    names = {n for p in problems for n in p}
    return {n for n in names if all(isinstance(p.get(n), bool) for p in problems)}


def _body(node: Node, arguments: dict[str, str], switches: set[str], indent: str) -> Iterator[str]:
    if isinstance(node, Leaf):
        yield f"{indent}return dict(_CONFIGURATIONS[{node.choice}])"
        return
    yield f"{indent}if {_condition(node.question, arguments, switches)}:"
    yield from _body(node.yes, arguments, switches, indent + "    ")
    yield from _body(node.no, arguments, switches, indent)


def _condition(question: Question, arguments: dict[str, str], switches: set[str]) -> str:
    argument = arguments[question.name]
    if not isinstance(question, Equals):
        return f"{argument} <= {_literal(question.limit)}"
    if question.value is None:
        return f"{argument} is None"
    if question.name in switches:
        return argument if question.value else f"not {argument}"
    value = question.value  # linters object to == True
    return f"{argument} == {_literal(int(value) if isinstance(value, bool) else value)}"


def _dict(config: Configuration) -> str:
    return "{" + ", ".join(f"{n!r}: {_literal(v)}" for n, v in config.items()) + "}"


def _literal(value: Value) -> str:
    if isinstance(value, float) and math.isinf(value):
        return f'float("{value}")'
    return ascii(value)


def _escape_docstring(text: str) -> str:
    """Return text as one line that is safe in a docstring."""
    visible = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return visible.replace("\\", "\\\\").replace('"', '\\"')
