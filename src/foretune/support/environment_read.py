"""Which environment variables a function's code reads, from its syntax.

A name is a text in the code, or a variable of the function that holds a text. Names that are only
computed when the function runs are not known, nor is what a loop over all variables reads, or code
without a file.
"""

import ast
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from foretune.support.captures import names_read, nested_code_objects
from foretune.support.function_code import syntax_of, syntax_of_lambda

READS_ENVIRONMENT = {"environ", "getenv", "environb", "getenvb", "expandvars"}
"""Names in code that reads environment variables."""
_UNFOLLOWED = READS_ENVIRONMENT - {"environ", "getenv"}
"""Those whose variables are not looked for."""
_METHODS = ("get", "pop", "setdefault", "__getitem__", "__contains__")
"""Methods of the environment that read one variable."""


@dataclass
class EnvironmentRead:
    """The names of variables that code reads; ``is_complete`` tells whether these are all."""

    names: set[str] = field(default_factory=set)
    is_complete: bool = True

    @property
    def text(self) -> str:
        """The variables that are set, with their values."""
        listed = [f"{name}={os.environ[name]}" for name in sorted(self.names & os.environ.keys())]
        return "\n".join(listed)


def environment_read(function: FunctionType, variables: Mapping[str, Any]) -> EnvironmentRead:
    """Return what a function reads; ``variables`` are its globals, closure and defaults."""
    read = EnvironmentRead()
    globals_read, attributes = names_read(function.__code__)
    is_held = any(value is os.environ or value is os.getenv for value in variables.values())
    texts = {text for text in _constants(function) if isinstance(text, str)}
    if not is_held and not READS_ENVIRONMENT & (globals_read | attributes | texts):
        return read
    syntax = syntax_of(function) or syntax_of_lambda(function)
    if syntax is None:  # it has no file
        read.names = texts | {text for text in variables.values() if isinstance(text, str)}
        read.is_complete = False
        return read
    read.is_complete = not READS_ENVIRONMENT & texts  # getattr(os, "environ")
    _Visitor(read, variables).visit(syntax)
    return read


def _constants(function: FunctionType) -> Iterator[Any]:
    for code in nested_code_objects(function.__code__):
        yield from code.co_consts


class _Visitor(ast.NodeVisitor):
    """Finds every use of the environment in a function."""

    def __init__(self, read: EnvironmentRead, variables: Mapping[str, Any]) -> None:
        self._read = read
        self._variables = variables

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """``os.environ[name]``."""
        if self._is_environment(node.value):
            self._take(node.slice)
        else:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """``os.environ.get(name, …)`` and ``os.getenv(name, …)``."""
        function = node.func
        is_method = isinstance(function, ast.Attribute) and function.attr in _METHODS
        reads_one = self._is(function, "getenv", os.getenv) or (
            is_method and self._is_environment(function.value)  # type: ignore[attr-defined]
        )
        if not (reads_one and node.args):
            self.generic_visit(node)
            return
        self._take(node.args[0])
        for argument in node.args[1:]:
            self.visit(argument)

    def visit_Compare(self, node: ast.Compare) -> None:
        """``name in os.environ``."""
        if len(node.comparators) == 1 and self._is_environment(node.comparators[0]):
            self._take(node.left)
        else:
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        """The environment itself goes elsewhere."""
        is_environment = self._is_environment(node) or node.id in _UNFOLLOWED
        self._read.is_complete &= not is_environment

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """The environment itself goes elsewhere, for example into a loop."""
        if self._is_environment(node) or node.attr in _UNFOLLOWED:
            self._read.is_complete = False
        else:
            self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """``from os import environ`` makes a local name."""
        self._read.is_complete &= not READS_ENVIRONMENT & {alias.name for alias in node.names}

    def _is_environment(self, node: ast.expr) -> bool:
        return self._is(node, "environ", os.environ)

    def _is(self, node: ast.expr, name: str, value: Any) -> bool:
        if isinstance(node, ast.Name):
            return self._variables.get(node.id) is value
        return isinstance(node, ast.Attribute) and node.attr == name

    def _take(self, node: ast.expr) -> None:
        name = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Name):
            name = self._variables.get(node.id)
        if isinstance(name, str):
            self._read.names.add(name)
        else:
            self._read.is_complete = False
