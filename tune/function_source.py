"""The source of a function that chooses configurations by a decision tree, without imports."""

import keyword
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foretune.collect.compiled.arguments import DTYPES
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.configuration_tree import Question, Tree, leaves
from foretune.values import Value

WIDTH = 100
"""Characters of a line."""
MAX_LISTED_VALUES = 8
"""Values of an argument that its description lists."""
CONFIGURATION = "dict[str, int | float | bool | str]"
"""The type of a configuration."""
RESERVED = {"dict", "float", "str", "_CONFIGURATIONS", "_TYPES"}
"""Names in the function's body that arguments must not shadow."""
ELEMENT_TYPES = {*DTYPES, *DTYPES.values()}


@dataclass(frozen=True)
class _Argument:
    """An argument of the function, for a parameter that varies.

    Attributes:
        parameter: name of the problem's parameter.
        name: an identifier.
        values: what the problems have, in their order, each once.
        is_optional: whether problems lack it.
    """

    parameter: str
    name: str
    values: Sequence[Value]
    is_optional: bool

    @property
    def is_element_type(self) -> bool:
        """Whether all values are element types, which have several names."""
        return set(self.values) <= ELEMENT_TYPES

    @property
    def is_switch(self) -> bool:
        """Whether all problems have True or False."""
        return not self.is_optional and all(isinstance(value, bool) for value in self.values)

    @property
    def declaration(self) -> str:
        """Name, type and default value."""
        types = sorted({type(value).__name__ for value in self.values})
        if self.is_element_type:
            types = ["object"]
        elif self.is_optional:
            types.append("None")
        default = " = None" if self.is_optional else ""
        return f"{self.name}: {' | '.join(types)}{default}"


def write_source(
    title: str,
    notes: str,
    problems: Sequence[Problem],
    configs: Sequence[Configuration],
    tree: Tree,
) -> str:
    """Return the source of a module with a function ``choose``.

    ``title`` and ``notes`` are for its docstring; leaves of ``tree`` are indices of ``configs``.
    """
    arguments = _arguments(problems)
    used = sorted(set(leaves(tree)))
    element_types = [argument for argument in arguments if argument.is_element_type]
    lines = [
        '"""' + _escape_docstring(title),
        "",
        *textwrap.wrap(_escape_docstring(notes), WIDTH),
        '"""',
        "",
        f"_CONFIGURATIONS: tuple[{CONFIGURATION}, ...] = (",
        *(f"    {_dictionary(configs[number])}," for number in used),
        ")",
        *_type_table(element_types),
        "",
        "",
        *_signature(arguments),
        '    """Return the configuration for a problem.',
        "",
        *(f"    {line}" for line in _descriptions(arguments, problems)),
        '    """',
        *(f"    {a.name} = _TYPES.get(str({a.name}), {a.name})" for a in element_types),
        *_body(tree, {argument.parameter: argument for argument in arguments}, used, indent="    "),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def name_arguments(problems: Sequence[Problem]) -> dict[str, str]:
    """Return the argument of each parameter of the problems; optional ones come last.

    A parameter that is the same in all problems, e.g. a data type, gets no argument.
    """
    parameters = _parameters(problems)
    varying = [name for name in parameters if len({p.get(name) for p in problems}) > 1]
    required_first = sorted(varying, key=lambda name: _is_optional(name, problems))
    arguments: dict[str, str] = {}
    for name in required_first:
        identifier = re.sub(r"[^A-Za-z0-9_]", "_", name)
        if not identifier or identifier[0].isdigit():
            identifier = f"_{identifier}"
        if keyword.iskeyword(identifier) or identifier in RESERVED:
            identifier += "_"
        while identifier in arguments.values():
            identifier += "_"
        arguments[name] = identifier
    return arguments


def _arguments(problems: Sequence[Problem]) -> list[_Argument]:
    return [
        _Argument(
            parameter=parameter,
            name=name,
            values=_values(parameter, problems),
            is_optional=_is_optional(parameter, problems),
        )
        for parameter, name in name_arguments(problems).items()
    ]


def _parameters(problems: Sequence[Problem]) -> list[str]:
    """Return the names of all parameters, in order of appearance."""
    return list(dict.fromkeys(name for problem in problems for name in problem))


def _values(parameter: str, problems: Sequence[Problem]) -> list[Value]:
    """Return the values of a parameter, in order of appearance."""
    return list(dict.fromkeys(p[parameter] for p in problems if parameter in p))


def _is_optional(parameter: str, problems: Sequence[Problem]) -> bool:
    return any(parameter not in problem for problem in problems)


def _type_table(element_types: Sequence[_Argument]) -> list[str]:
    """Return the table from all names of element types to those of the problems."""
    used = sorted({str(value) for argument in element_types for value in argument.values})
    used_name_of: dict[str, str] = {}
    for used_name in used:
        full_name = DTYPES.get(used_name, used_name)
        short_names = [short for short, full in DTYPES.items() if full == full_name]
        for name in (full_name, f"torch.{full_name}", *short_names):
            if name not in used:
                used_name_of[name] = used_name
    if not used_name_of:
        return []
    entries = (f"    {name!r}: {used_name!r}," for name, used_name in used_name_of.items())
    return ["", "_TYPES = {", *entries, "}"]


def _signature(arguments: Sequence[_Argument]) -> list[str]:
    """Return the function's first line; one line per argument if it is too long."""
    declarations = [argument.declaration for argument in arguments]
    line = f"def choose({', '.join(declarations)}) -> {CONFIGURATION}:"
    if len(line) <= WIDTH:
        return [line]
    return ["def choose(", *(f"    {text}," for text in declarations), f") -> {CONFIGURATION}:"]


def _descriptions(arguments: Sequence[_Argument], problems: Sequence[Problem]) -> Iterator[str]:
    """Yield the measured range or values of each argument, then the constant parameters."""
    yield "Measured with:"
    for argument in arguments:
        called = "" if argument.name == argument.parameter else f" ({argument.parameter})"
        or_torch = "; a torch.dtype, or its name" if argument.is_element_type else ""
        text = f"{argument.name}{called}: {_summary(argument.values)}{or_torch}"
        yield from _wrap_description(text)

    described = {argument.parameter for argument in arguments}
    for name in _parameters(problems):
        if name not in described:
            values = _summary(_values(name, problems))
            yield from _wrap_description(f"{name}: {values} in all of them")


def _summary(values: Sequence[Value]) -> str:
    """Return the range of several numbers, or a list of values."""
    numbers = [value for value in values if not isinstance(value, (str, bool))]
    if 1 < len(values) == len(numbers):
        return f"{min(numbers)} … {max(numbers)}"
    more = ", …" if len(values) > MAX_LISTED_VALUES else ""
    return ", ".join(map(str, values[:MAX_LISTED_VALUES])) + more


def _wrap_description(text: str) -> list[str]:
    return textwrap.wrap(
        _escape_docstring(text),
        WIDTH - 4,
        initial_indent="    ",
        subsequent_indent="        ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _body(
    tree: Tree, arguments: dict[str, _Argument], used: list[int], indent: str
) -> Iterator[str]:
    """Yield the lines of a tree; ``arguments`` are by parameter, ``used`` configurations listed."""
    if not isinstance(tree, tuple):
        yield f"{indent}return dict(_CONFIGURATIONS[{used.index(tree)}])"
        return
    question, yes, no = tree
    yield f"{indent}if {_condition(question, arguments[question.name])}:"
    yield from _body(yes, arguments, used, indent + "    ")
    yield from _body(no, arguments, used, indent)


def _condition(question: Question, argument: _Argument) -> str:
    value = question.value
    if value is None:
        return f"{argument.name} is None"
    if question.at_most:
        return f"{argument.name} <= {_literal(value)}"
    if argument.is_switch:
        return argument.name if value else f"not {argument.name}"
    if isinstance(value, bool):
        value = int(value)  # linters object to == True
    return f"{argument.name} == {_literal(value)}"


def _dictionary(config: Configuration) -> str:
    entries = ", ".join(f"{name!r}: {_literal(value)}" for name, value in config.items())
    return f"{{{entries}}}"


def _literal(value: Value) -> str:
    if isinstance(value, float) and math.isinf(value):
        return f'float("{value}")'
    return ascii(value)


def _escape_docstring(text: str) -> str:
    """Return text as one line that is safe in a docstring."""
    visible = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return visible.replace("\\", "\\\\").replace('"', '\\"')
