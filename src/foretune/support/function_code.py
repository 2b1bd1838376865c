"""The code of a function as text that comments, docstrings and layout do not change.

The text is that of the syntax tree, and the same in every version of Python. Stored hashes are
made from it: it must not change.
"""

import ast
import contextlib
import inspect
import linecache
import textwrap
from types import CodeType
from typing import Any

from foretune.support.captures import nested_code_objects

KNOB_DECORATORS = ("tunable", "autotune")
"""Ends of the names of decorators that only list what may be tuned."""


def normalized_syntax(node: Any) -> Any:
    """Return syntax as lists, without positions, docstrings and fields that newer Pythons add."""
    if isinstance(node, ast.AST):
        fields = [(name, normalized_syntax(value)) for name, value in ast.iter_fields(node)]
        # Newer versions add fields, which are empty in older code.
        used = [(name, value) for name, value in fields if value not in (None, [])]
        return [type(node).__name__, *used]
    if isinstance(node, list):
        return [normalized_syntax(child) for child in node if not _is_docstring(child)]
    return node


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def function_code(function: Any) -> str:
    """Return the normalized syntax of a function; its bytecode if it has no file.

    Of a decorated function, this is the code of the decorator's wrapper.
    """
    tree = syntax_of(function)
    if tree is None:
        return _bytecode(function.__code__)

    # A list of knobs is not code: another list measures the same function.
    decorators = getattr(tree, "decorator_list", [])
    others = [decorator for decorator in decorators if not _lists_knobs(decorator)]
    tree.decorator_list = others  # type: ignore[attr-defined]
    return repr(normalized_syntax(tree))


def syntax_of(function: Any) -> ast.stmt | None:
    """Return the syntax of a function; None for a lambda, and if it has no file.

    Of a decorated function, this is the syntax of the decorator's wrapper.
    """
    code: CodeType = function.__code__
    # The line of a lambda may hold other code.
    if code.co_name == "<lambda>":
        return None
    with contextlib.suppress(OSError, TypeError, SyntaxError, ValueError):
        # Of the code object: `inspect` would replace a wrapper by what it wraps.
        text = textwrap.dedent(inspect.getsource(code))
        (tree,) = ast.parse(text).body
        return tree
    return None


def syntax_of_lambda(function: Any) -> ast.Lambda | None:
    """Return the syntax of a lambda; None if it has no file, or is none."""
    code: CodeType = function.__code__
    if code.co_name != "<lambda>":
        return None
    lines = linecache.getlines(code.co_filename)
    with contextlib.suppress(SyntaxError, ValueError):
        found = [
            node
            for node in ast.walk(ast.parse("".join(lines)))
            if isinstance(node, ast.Lambda) and _holds_code(node.body, code)
        ]
        # A lambda around it does not hold its code, but its body holds these places, too.
        return min(found, key=_length, default=None)
    return None


def _holds_code(node: ast.expr, code: CodeType) -> bool:
    """Whether all code of a function comes from an expression."""
    start = (node.lineno, node.col_offset)
    end = (node.end_lineno or 0, node.end_col_offset or 0)
    places = [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if None not in (line, end_line, column, end_column) and (column, end_column) != (0, 0)
    ]
    return bool(places) and all(start <= first and last <= end for first, last in places)


def _length(node: ast.Lambda) -> tuple[int, int]:
    lines = (node.end_lineno or 0) - node.lineno
    return lines, (node.end_col_offset or 0) - node.col_offset


def _lists_knobs(decorator: ast.expr) -> bool:
    """Whether a decorator only lists what may be tuned, which is not code."""
    name = ast.unparse(getattr(decorator, "func", decorator))
    return name.endswith(KNOB_DECORATORS)


def _bytecode(code: CodeType) -> str:
    """Return the bytecode of a function and of the functions inside it, with names and constants.

    It is that of one version of Python only.
    """
    parts = []
    for part in nested_code_objects(code):
        constants = [_constant_text(constant) for constant in part.co_consts]
        parts.append((part.co_code, part.co_names, constants))
    return repr(parts)


def _constant_text(constant: Any) -> str:
    """Return text of a constant in code; that of a set must not depend on the process."""
    # Code inside is listed separately.
    if isinstance(constant, CodeType):
        return "code"
    if isinstance(constant, frozenset):
        return f"frozenset {sorted(map(_constant_text, constant))}"
    if isinstance(constant, tuple):
        return f"({', '.join(map(_constant_text, constant))})"
    return repr(constant)
