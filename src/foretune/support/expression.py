"""Safe expressions over columns, in a small subset of Python.

Expressions are evaluated row by row as in Python; integers may be of any size. There are three
exceptions. Very large powers are computed in floating point. If a parameter mixes text and numbers,
ordering and arithmetic are false for its texts. An integer divided by zero with ``//`` or ``%`` is
zero, as in NumPy, and other divisions by zero are infinite.
"""

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.errors import SpaceError
from foretune.support import exact_arithmetic
from foretune.support.exact_arithmetic import as_numbers

Columns = Mapping[str, npt.NDArray[Any]]

Operators = dict[type[ast.AST], Callable[..., Any]]

_BINARY: Operators = {
    ast.Add: exact_arithmetic.add,
    ast.Sub: exact_arithmetic.subtract,
    ast.Mult: exact_arithmetic.multiply,
    ast.Div: exact_arithmetic.divide,
    ast.FloorDiv: exact_arithmetic.floor_divide,
    ast.Mod: exact_arithmetic.remainder,
    ast.Pow: exact_arithmetic.power,
}
_ORDER: Operators = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_EQUALITY: Operators = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
_MEMBERSHIP = (ast.In, ast.NotIn)
_CALLS: dict[str, Callable[..., Any]] = {
    "min": exact_arithmetic.minimum,
    "max": exact_arithmetic.maximum,
    "abs": np.abs,
}
_AUXILIARY_NODES = (ast.operator, ast.cmpop, ast.boolop, ast.unaryop, ast.expr_context)
_LISTS = (ast.Tuple, ast.List, ast.Set)


class Expression:
    """A boolean or numeric expression over the columns `names`; ``what`` is its name in messages.

    It consists of arithmetic, comparisons (also chained), ``and``/``or``/``not``, ``in (…)``,
    ``… if … else …``, ``min``, ``max`` and ``abs``. Raises SpaceError if ``text`` is not an
    expression, or uses anything else.
    """

    def __init__(self, text: str, what: str = "restriction") -> None:
        self.text = text
        self.what = what
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as e:
            raise SpaceError(f"{what} {text!r} is not an expression: {e.msg}") from None
        except (ValueError, RecursionError, MemoryError):
            raise SpaceError(f"{what} {text[:60]!r} is not an expression") from None

        # Names of functions and lists are allowed in their places only.
        nodes = list(ast.walk(self._tree))
        functions = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        lists = {id(child) for node in nodes for child in _lists_of(node)}
        for node in nodes:
            is_in_its_place = id(node) in functions or id(node) in lists
            if not is_in_its_place and not _is_supported(node):
                raise SpaceError(
                    f"{what} {text!r} uses {ast.unparse(node)!r}: only arithmetic, "
                    "comparisons, and/or/not, in (…), if/else, min, max and abs are supported; "
                    "pass a Python function for anything else"
                )
        self.names = frozenset(
            node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in functions
        )

    def holds(self, columns: Columns) -> npt.NDArray[np.bool_]:
        """Return a boolean per row of ``columns``: arrays of equal length by name, at least one."""
        return self._compute(columns, _truth)

    def evaluate(self, columns: Columns) -> npt.NDArray[np.float64]:
        """Return a number per row of ``columns``; a single one without columns."""
        return self._compute(columns, lambda value: as_numbers(value).astype(np.float64))

    def _compute(self, columns: Columns, convert: Callable[[Any], Any]) -> npt.NDArray[Any]:
        n_rows = len(next(iter(columns.values()))) if columns else 1
        try:
            with np.errstate(all="ignore"):
                value = convert(_evaluate(self._tree, columns))
                return np.broadcast_to(value, n_rows)
        except (TypeError, ValueError, ArithmeticError, RecursionError) as e:
            raise SpaceError(f"{self.what} {self.text!r} cannot be evaluated: {e}") from e


def _lists_of(node: ast.AST) -> list[ast.expr]:
    """Return the children of ``node`` that may be a list."""
    match node:
        case ast.Compare(ops=ops, comparators=comparators):
            return [
                comparator
                for op, comparator in zip(ops, comparators, strict=True)
                if isinstance(op, _MEMBERSHIP) and isinstance(comparator, _LISTS)
            ]
        case ast.Call(args=[ast.Tuple() | ast.List() as only]) if only.elts:
            return [only]
    return []


def _is_supported(node: ast.AST) -> bool:
    """Return whether a node belongs to the subset of Python; its children are asked themselves."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, (bool, int, float, str))
        case ast.BinOp(op=op):
            return type(op) in _BINARY
        case ast.UnaryOp(op=op):
            return type(op) in _UNARY
        case ast.Compare(ops=ops, comparators=comparators):
            return all(map(_is_supported_comparison, ops, comparators))
        case ast.Call(func=ast.Name(id="abs"), args=args, keywords=[]):
            return len(args) == 1
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return name in _CALLS and len(args) >= 1
    return isinstance(node, (ast.Name, ast.BoolOp, ast.IfExp, *_AUXILIARY_NODES))


def _is_supported_comparison(op: ast.cmpop, comparator: ast.expr) -> bool:
    if isinstance(op, _MEMBERSHIP):
        return isinstance(comparator, _LISTS)
    return type(op) in _ORDER or type(op) in _EQUALITY


def _evaluate(node: ast.expr, columns: Columns) -> Any:
    """Return a node's value: an array with a row per row of the columns, or a constant."""

    def value(n: ast.expr) -> Any:
        return _evaluate(n, columns)

    match node:
        case ast.Constant(value=constant):
            return constant
        case ast.Name(id=name):
            return columns[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](as_numbers(value(left)), as_numbers(value(right)))
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](value(operand))
        case ast.BoolOp(op=op, values=values):
            return reduce(_LOGICAL[type(op)], map(value, values))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _select(_truth(value(test)), value(body), value(orelse))
        case ast.Compare():
            return _compare(node, value)
        case ast.Call(func=ast.Name(id=name), args=args):
            first = args[0]
            arguments = first.elts if isinstance(first, (ast.Tuple, ast.List)) else args
            numbers = [as_numbers(value(argument)) for argument in arguments]
            return np.abs(numbers[0]) if name == "abs" else reduce(_CALLS[name], numbers)
    # A list is in place of a value.
    raise TypeError(ast.unparse(node))


def _compare(node: ast.Compare, value: Callable[[ast.expr], Any]) -> Any:
    """Return whether all comparisons of a chain hold, as in ``1 < a <= b``."""
    result: Any = True
    left = value(node.left)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        if isinstance(op, _MEMBERSHIP):
            assert isinstance(comparator, _LISTS)
            is_member = _is_member(left, map(value, comparator.elts))
            holds = ~is_member if isinstance(op, ast.NotIn) else is_member
        elif type(op) in _EQUALITY:
            right = value(comparator)
            holds = _EQUALITY[type(op)](left, right)
            left = right
        else:
            right = value(comparator)
            holds = _ordered(_ORDER[type(op)], left, right)
            left = right
        result = np.logical_and(result, holds)
    return result


def _is_member(value: Any, elements: Iterable[Any]) -> Any:
    is_member: Any = np.False_
    for element in elements:
        is_member = np.logical_or(is_member, value == element)
    return is_member


def _ordered(order: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Compare two texts as texts, anything else as numbers."""
    left_array = np.asarray(left)
    right_array = np.asarray(right)
    if left_array.dtype.kind == "U" and right_array.dtype.kind == "U":
        return order(left_array, right_array)
    return order(as_numbers(left_array), as_numbers(right_array))


def _truth(value: Any) -> npt.NDArray[np.bool_]:
    return np.asarray(value).astype(bool)


def _select(test: npt.NDArray[np.bool_], yes: Any, no: Any) -> npt.NDArray[Any]:
    """Return ``yes`` where ``test`` holds, else ``no``."""
    yes_array = np.asarray(yes)
    no_array = np.asarray(no)
    # NumPy would turn numbers beside text into text.
    if (yes_array.dtype.kind == "U") != (no_array.dtype.kind == "U"):
        yes_array = yes_array.astype(object)
        no_array = no_array.astype(object)
    return np.where(test, yes_array, no_array)


_LOGICAL: Operators = {
    ast.And: lambda a, b: _select(_truth(a), b, a),
    ast.Or: lambda a, b: _select(_truth(a), a, b),
}
_UNARY: Operators = {
    ast.USub: lambda value: -as_numbers(value),
    ast.UAdd: as_numbers,
    ast.Not: lambda value: ~_truth(value),
}
