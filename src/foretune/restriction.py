"""Restrictions: rules between tunable parameters, checked on whole columns at once."""

import ast
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.errors import SpaceError

Columns = Mapping[str, npt.NDArray[Any]]

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda a, b: np.isin(a, b),
    ast.NotIn: lambda a, b: ~np.isin(a, b),
}
_CALLS: dict[str, Callable[..., Any]] = {"min": np.minimum, "max": np.maximum, "abs": np.abs}


class Restriction:
    """A rule that every legal configuration satisfies.

    Either an expression over parameter names, e.g. ``"BLOCK_M * BLOCK_N <= 4096"``, or a function
    whose arguments are parameter names. Expressions allow arithmetic, comparisons (chained too),
    ``and``/``or``/``not``, ``in (…)``, ``… if … else …``, ``min``, ``max``, ``abs`` and nothing
    else, so a space read from a file cannot run code.

    Args:
        rule: the expression or function.
        names: the space's parameters; the rule may use no other name.

    Raises:
        SpaceError: the rule cannot be parsed, or names something that is not a parameter.
    """

    def __init__(self, rule: str | Callable[..., bool], names: set[str]) -> None:
        self.rule = rule
        if callable(rule):
            self.names = frozenset(inspect.signature(rule).parameters)
        else:
            try:
                self._tree = ast.parse(rule, mode="eval").body
            except SyntaxError as e:
                raise SpaceError(f"restriction {rule!r} is not an expression: {e.msg}") from None
            called = {id(n.func) for n in ast.walk(self._tree) if isinstance(n, ast.Call)}
            self.names = frozenset(
                n.id
                for n in ast.walk(self._tree)
                if isinstance(n, ast.Name) and id(n) not in called
            )
        if unknown := self.names - names:
            raise SpaceError(
                f"restriction {self} uses {', '.join(sorted(unknown))}, "
                f"which is no parameter; parameters: {', '.join(sorted(names))}"
            )

    def __str__(self) -> str:
        return self.rule if isinstance(self.rule, str) else getattr(self.rule, "__name__", "rule")

    def holds(self, columns: Columns) -> npt.NDArray[np.bool_]:
        """Return one boolean per row of ``columns`` (equally long arrays by parameter name)."""
        if callable(self.rule):
            return self._holds_called(columns)
        rows = len(next(iter(columns.values())))
        with np.errstate(all="ignore"):
            result = self._evaluate(self._tree, columns)
        return np.broadcast_to(np.asarray(result, dtype=bool), rows)

    def _holds_called(self, columns: Columns) -> npt.NDArray[np.bool_]:
        assert callable(self.rule)
        # A rule sees few distinct combinations, however many rows there are.
        names = sorted(self.names)
        rows = len(next(iter(columns.values())))
        key = np.zeros(rows, dtype=np.int64)
        for name in names:
            distinct, codes = np.unique(columns[name], return_inverse=True)
            key = key * len(distinct) + codes
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        verdicts = np.array(
            [bool(self.rule(**{n: columns[n][row].item() for n in names})) for row in first],
            dtype=bool,
        )
        return verdicts[inverse]

    def _evaluate(self, node: ast.expr, columns: Columns) -> Any:  # noqa: C901 - one case a node
        def value(n: ast.expr) -> Any:
            return self._evaluate(n, columns)

        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.Name(id=name):
                return columns[name]
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return [value(e) for e in elements]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](value(left), value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return np.logical_not(value(operand))
            case ast.BoolOp(op=op, values=values):
                combine = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return combine.reduce(np.broadcast_arrays(*map(value, values)))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return np.where(value(test), value(body), value(orelse))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                result: Any = True
                previous = value(left)
                for comparison, comparator in zip(ops, comparators, strict=True):
                    if type(comparison) not in _COMPARE:
                        break
                    current = value(comparator)
                    compare = _COMPARE[type(comparison)]
                    result = np.logical_and(result, compare(previous, current))
                    previous = current
                else:
                    return result
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS:
                function = _CALLS[name]
                values = [value(a) for a in args]
                return function(*values) if name == "abs" else _fold(function, values)
        raise SpaceError(
            f"restriction {self} uses {ast.unparse(node)!r}: only arithmetic, comparisons, "
            "and/or/not, in, if/else, min, max and abs are understood; "
            "pass a Python function for anything else"
        )


def _fold(function: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    result = values[0]
    for v in values[1:]:
        result = function(result, v)
    return result
