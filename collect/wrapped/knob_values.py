"""Values of a function's knobs that a run table cannot store, such as None, tuples and functions.

The search space has a text in place of each such value: functions, classes and members of enums by
their name, others as Python writes them. The function and its rules get the values themselves, but
NumPy's numbers as Python's. Equal numbers of different types (``1``, ``1.0`` and ``True``) are also
told apart by texts.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np

from foretune.errors import UsageError
from foretune.space import Configuration
from foretune.values import MAX_INTEGER, MIN_INTEGER, Value

PLAIN = (bool, int, float, str)
FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, np.ufunc)
ADDRESS = " at 0x"
"""Part of the text of an object that has no text of its own; it differs in each process."""

Rule = str | Callable[..., bool]


class KnobValues:
    """The values of each knob, and the texts that stand for some of them.

    `listed` has what the search space gets. Raises UsageError if a value has no text that is the
    same in every process.
    """

    def __init__(self, knobs: Mapping[str, Any]) -> None:
        self.listed: dict[str, Any] = {}
        self._objects: dict[str, dict[str, Any]] = {}
        for name, values in knobs.items():
            if isinstance(values, PLAIN):  # the space explains that it needs a list
                self.listed[name] = values
                continue
            texts = _texts(name, _as_tuple(name, values))
            self.listed[name] = tuple(value if text is None else text for value, text in texts)
            self._objects[name] = {text: value for value, text in texts if text is not None}

    @property
    def has_texts(self) -> bool:
        """Whether texts stand for some values."""
        return any(self._objects.values())

    @property
    def functions(self) -> list[Any]:
        """The functions and classes among the values, whose code counts, too."""
        values = [value for objects in self._objects.values() for value in objects.values()]
        return [value for value in values if _has_code(value)]

    def decode(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration with the values themselves."""
        return {name: self._value(name, value) for name, value in config.items()}

    def decode_configuration(self, config: Configuration) -> Mapping[str, Any]:
        """Return a configuration itself if all of its values are plain; else decode it."""
        return self.decode(config) if self.has_texts else config

    def encode(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration with the texts; unknown values stay as they are."""
        return {name: self._text(name, value) for name, value in config.items()}

    def decode_rules(self, rules: Any) -> Any:
        """Return restrictions whose functions get the values themselves."""
        if not self.has_texts or rules is None:
            return rules
        if callable(rules):
            return DecodedRule(rules, self)
        if isinstance(rules, str):
            return rules
        return [DecodedRule(rule, self) if callable(rule) else rule for rule in rules]

    def _value(self, name: str, value: Any) -> Any:
        objects = self._objects.get(name, {})
        return objects.get(value, value) if isinstance(value, str) else value

    def _text(self, name: str, value: Any) -> Any:
        for text, known in self._objects.get(name, {}).items():
            if _is_same(known, value):
                return text
        return value


class DecodedRule:
    """A restriction that gets the values of knobs instead of the texts that stand for them."""

    def __init__(self, rule: Callable[..., bool], values: KnobValues) -> None:
        self.rule = rule
        self.__name__ = getattr(rule, "__name__", "rule")
        self._values = values
        self.__signature__ = inspect.signature(rule)

    def __call__(self, *arguments: Any, **named: Any) -> bool:
        """Call the rule; a single mapping holds all knobs."""
        if len(arguments) == 1 and isinstance(arguments[0], Mapping):
            return self.rule(self._values.decode(arguments[0]))
        # By position, a rule gets its first arguments, or the values of all knobs.
        parameters = self.__signature__.parameters.values()
        by_order = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [p.name for p in parameters if p.kind in by_order]
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            names = list(self._values.listed)
        by_position = self._values.decode(dict(zip(names, arguments, strict=False)))
        return self.rule(*by_position.values(), **self._values.decode(named))


def _as_tuple(name: str, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, Iterable):
        raise UsageError(f"knob {name!r} is {values!r}: give a list of its values")
    if isinstance(values, set | frozenset):  # the order of texts differs in each process
        return tuple(sorted(values, key=lambda value: (type(value).__name__, repr(value))))
    return tuple(values)


def _texts(name: str, values: Sequence[Any]) -> list[tuple[Any, str | None]]:
    """Return each value with the text that stands for it.

    The text is None if the value is plain and unambiguous; then it is as a run table stores it.
    """
    plain = [_plain(value) for value in values]
    taken = {value for value in plain if isinstance(value, str)}
    texts: list[tuple[Any, str | None]] = []
    for value, plain_value in zip(values, plain, strict=True):
        if plain_value is not None and not _is_ambiguous(plain_value, plain):
            texts.append((plain_value, None))
            continue
        repeated = [text for known, text in texts if text is not None and _is_same(known, value)]
        if repeated:
            texts.append((value, repeated[0]))  # the space refuses it
            continue
        text = _distinct(_text_of(name, value), taken)
        taken.add(text)
        texts.append((value, text))
    return texts


def _plain(value: Any) -> Value | None:
    """Return a value as a run table stores it; None if it cannot."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Enum) or not isinstance(value, PLAIN):
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER:
        return None
    return value


def _is_ambiguous(value: Value, plain: Sequence[Value | None]) -> bool:
    """Return whether an equal number of another type is among the values."""
    return any(other == value and type(other) is not type(value) for other in plain)


def _is_same(known: Any, value: Any) -> bool:
    if known is value:
        return True
    if isinstance(known, tuple | list) and repr(known) != repr(value):  # (1,) == (True,)
        return False
    return type(known) is type(value) and bool(np.all(known == value))


def _has_code(value: Any) -> bool:
    return isinstance(value, (type, functools.partial, *FUNCTIONS))


def _text_of(name: str, value: Any) -> str:
    """Return the text of a value, the same in every process."""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, functools.partial):
        named = [f"{key}={_text_of(name, v)}" for key, v in value.keywords.items()]
        parts = [_text_of(name, v) for v in (value.func, *value.args)]
        return f"partial({', '.join([*parts, *named])})"
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        inside = ", ".join(_text_of(name, item) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if type(value) in (set, frozenset):  # the order of texts differs in each process
        inside = ", ".join(sorted(_text_of(name, item) for item in value))
        return f"{type(value).__name__}({{{inside}}})" if value else f"{type(value).__name__}()"
    if type(value) is dict:
        pairs = [f"{_text_of(name, key)}: {_text_of(name, v)}" for key, v in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, (type, *FUNCTIONS)):
        qualified = getattr(value, "__qualname__", getattr(value, "__name__", ""))
        module = getattr(value, "__module__", None)
        return qualified if module in (None, "builtins", "__main__") else f"{module}.{qualified}"
    text = repr(value)
    if ADDRESS in text or isinstance(value, np.ndarray):
        raise UsageError(
            f"knob {name!r} has a value without a name, {text}: list names instead, and look the "
            "values up in the function"
        )
    return text


def _distinct(text: str, taken: set[str]) -> str:
    """Return a text that no other value has: that of lambdas, for example, is always the same."""
    distinct = text
    number = 1
    while distinct in taken:
        number += 1
        distinct = f"{text} {number}"
    return distinct
