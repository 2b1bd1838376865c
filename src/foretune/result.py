"""What all results have in common: one line, a table, plain values, equality."""

import html
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


class Result:
    """Base of result dataclasses, which have ``eq=False`` and ``repr=False``.

    Notebooks show `headline` and the first rows of `to_frame`.
    """

    @property
    def headline(self) -> str:
        """The result in one line."""
        return ", ".join(f"{name}={value}" for name, value in _compared(self).items())

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return {name: plain(value) for name, value in _compared(self).items()}

    def to_frame(self) -> "pd.DataFrame":
        """Return the result as a table."""
        import pandas as pd

        return pd.DataFrame([self.to_dict()])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.headline})"

    def __str__(self) -> str:
        return self.headline

    def __eq__(self, other: object) -> bool:
        """Whether all fields are equal; NaN is equal to NaN."""
        return type(self) is type(other) and _same(_compared(self), _compared(other))

    def __hash__(self) -> int:
        return hash((type(self), self.headline))

    def _repr_html_(self) -> str:
        table = self.to_frame().head(10)
        shown = table.to_html(index=False, na_rep="–", border=0, float_format="{:.4g}".format)
        return f"<p><b>{html.escape(self.headline)}</b></p>{shown}"


def plain(value: Any, as_json: bool = False) -> Any:
    """Convert a value to dictionaries, lists, numbers and text.

    ``as_json`` includes all fields of dataclasses, and turns NumPy's numbers into Python's, and NaN
    and infinity into None.
    """
    if is_dataclass(value) and not isinstance(value, Mapping):
        value = _compared(value, hidden=as_json)
    if isinstance(value, Mapping):
        return {str(key): plain(inner, as_json) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, as_json) for inner in value]
    if isinstance(value, Enum):
        return value.value
    if as_json and isinstance(value, float) and not math.isfinite(value):
        return None
    is_numpy_number = hasattr(value, "item")
    return value.item() if as_json and is_numpy_number else value


def _compared(value: Any, hidden: bool = False) -> dict[str, Any]:
    """Return the fields of a dataclass that count in comparisons; with ``hidden``, all fields."""
    return {f.name: getattr(value, f.name) for f in fields(value) if f.compare or hidden}


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal at every depth; NaN is equal to NaN."""
    if is_dataclass(one) and type(one) is type(other):
        return _same(_compared(one), _compared(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return False
        return all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return False
        return all(map(_same, one, other))
    is_table = hasattr(one, "equals")
    if is_table:
        return type(one) is type(other) and bool(one.equals(other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)
