"""Restrictions: rules between tunable parameters, checked on whole columns at once."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from foretune.errors import SpaceError
from foretune.support.expression import Columns, Expression

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Restriction:
    """A rule that every legal configuration satisfies.

    It is an expression over parameters, e.g. ``"BLOCK_M * BLOCK_N <= 4096"``, or a function whose
    arguments are parameters. An argument with a default need not be one; ``**others`` gets all
    parameters without an argument, ``*values`` the values of all, in order.
    Expressions are a subset of Python (see `Expression`), so a space read from a file cannot run
    code. Raises SpaceError if the rule is invalid, or uses a name that is not a parameter.
    """

    def __init__(self, rule: str | Callable[..., bool], names: Collection[str]) -> None:
        self.rule = rule if callable(rule) else Expression(rule)
        if isinstance(self.rule, Expression):
            self.names = self.rule.names
            required = self.names
        else:
            self._arguments = _RuleArguments.of_function(self.rule, names, str(self))
            self.names = self._arguments.parameters
            required = self._arguments.required
        unknown = required - {*names}
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
            return bool(self._arguments.call(self.rule, values))
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


@dataclass(frozen=True)
class _RuleArguments:
    """How to call a rule.

    Attributes:
        required: arguments without a default.
        parameters: parameters of the space that the rule gets.
        positional: those that can only be passed by position, in order.
    """

    required: frozenset[str]
    parameters: frozenset[str]
    positional: tuple[str, ...]

    @classmethod
    def of_function(cls, rule: Callable[..., bool], names: Collection[str], text: str) -> Self:
        """Return the arguments of a function; SpaceError if Python does not know them."""
        try:
            arguments = inspect.signature(rule).parameters.values()
        except (TypeError, ValueError):
            raise SpaceError(
                f"restriction {text} does not tell its arguments: write a lambda that calls it"
            ) from None
        kinds = {a.kind for a in arguments}
        named = [a for a in arguments if a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD)]
        required = frozenset(a.name for a in named if a.default is a.empty)
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            return cls(required=required, parameters=frozenset(names), positional=tuple(names))

        parameters = required | {a.name for a in named if a.name in names}
        if inspect.Parameter.VAR_KEYWORD in kinds:
            parameters |= {*names}
        positional_only = [a.name for a in named if a.kind is a.POSITIONAL_ONLY]
        return cls(
            required=required,
            parameters=parameters,
            positional=tuple(name for name in positional_only if name in parameters),
        )

    def call(self, rule: Callable[..., bool], values: Mapping[str, Any]) -> bool:
        """Call the rule with the values of its parameters."""
        by_position = [values[name] for name in self.positional]
        by_name = {name: v for name, v in values.items() if name not in self.positional}
        return rule(*by_position, **by_name)


def adapt_mapping_rule(rule: Callable[..., bool], names: tuple[str, ...]) -> Callable[..., bool]:
    """Turn a rule that takes one mapping of all parameters into one that takes the parameters."""
    try:
        arguments = inspect.signature(rule).parameters.values()
    except (TypeError, ValueError):
        return rule  # `Restriction` explains it
    required = [a for a in arguments if a.kind in POSITIONAL and a.default is a.empty]
    others = [a for a in arguments if a.kind not in POSITIONAL or a.name in names]
    if len(required) != 1 or others:
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
    numbers = [code_of.setdefault(value, len(code_of)) for value in column.tolist()]
    return np.array(numbers), len(code_of)
