"""Restrictions: rules between tunable parameters, checked on whole columns at once."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.errors import SpaceError
from foretune.support.expression import Columns, Expression


class Restriction:
    """A rule that every legal configuration satisfies.

    It is an expression over parameters, e.g. ``"BLOCK_M * BLOCK_N <= 4096"``, or a function whose
    arguments are parameters. Expressions are a subset of Python (see `Expression`), so a space read
    from a file cannot run code. Raises SpaceError if the rule is invalid, or uses a name that is
    not a parameter.
    """

    def __init__(self, rule: str | Callable[..., bool], names: set[str]) -> None:
        self.rule = rule if callable(rule) else Expression(rule)
        if isinstance(self.rule, Expression):
            self.names = self.rule.names
        else:
            self.names = frozenset(inspect.signature(self.rule).parameters)
        unknown = self.names - names
        if unknown:
            raise SpaceError(
                f"restriction {self} uses {', '.join(sorted(unknown))}, "
                f"which is not a parameter; parameters: {', '.join(sorted(names))}"
            )

    def __str__(self) -> str:
        if isinstance(self.rule, Expression):
            return self.rule.text
        return getattr(self.rule, "__name__", "rule")

    def _allows(self, values: dict[str, Any]) -> bool:
        """Call the function; raise SpaceError if it fails."""
        assert callable(self.rule)
        try:
            return bool(self.rule(**values))
        except Exception as e:
            arguments = ", ".join(f"{name}={value}" for name, value in values.items())
            raise SpaceError(
                f"restriction {self} fails for {arguments}: {type(e).__name__}: {e}; it must "
                "return a boolean"
            ) from e

    def holds(self, columns: Columns) -> npt.NDArray[np.bool_]:
        """Return a boolean per row of ``columns``: arrays of equal length by parameter."""
        if isinstance(self.rule, Expression):
            return self.rule.holds(columns)

        # Number the distinct combinations of its arguments.
        names = sorted(self.names)
        n_rows = len(next(iter(columns.values())))
        combination = np.zeros(n_rows, dtype=np.int64)
        for name in names:
            codes, n_distinct = _codes(columns[name])
            combination = combination * n_distinct + codes
        _, first_rows, number = np.unique(combination, return_index=True, return_inverse=True)

        # Call the function once for each of them.
        values = {name: columns[name][first_rows].tolist() for name in names}
        allowed = [
            self._allows({name: values[name][i] for name in names}) for i in range(len(first_rows))
        ]
        return np.array(allowed, dtype=bool)[number]


def adapt_mapping_rule(rule: Callable[..., bool], names: tuple[str, ...]) -> Callable[..., bool]:
    """Turn a rule that takes one mapping of all parameters into one that takes the parameters."""
    arguments = list(inspect.signature(rule).parameters)
    if len(arguments) != 1 or arguments[0] in names:
        return rule
    return _MappingRule(rule, names)


class _MappingRule:
    """A rule whose arguments are parameters, and which calls one that takes a mapping of them."""

    def __init__(self, rule: Callable[..., bool], names: tuple[str, ...]) -> None:
        self.rule = rule
        self.__name__ = getattr(rule, "__name__", "rule")
        kind = inspect.Parameter.KEYWORD_ONLY
        self.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])

    def __call__(self, **values: Any) -> bool:
        return bool(self.rule(values))


def _codes(column: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], int]:
    """Return an integer code per row, and the number of distinct values."""
    if column.dtype.kind != "O":
        distinct, codes = np.unique(column, return_inverse=True)
        return codes, len(distinct)
    code_of: dict[Any, int] = {}
    codes = [code_of.setdefault(value, len(code_of)) for value in column.tolist()]
    return np.array(codes), len(code_of)
