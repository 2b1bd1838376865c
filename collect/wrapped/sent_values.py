"""Parts of an output that was sent from another process, where they are no plain values.

A process that runs a user's code may send anything, so no class of a user is made from what it
sends. What an object holds stays an `ObjectParts`, which is compared like the object. These classes
hold plain values and arrays only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class ExactValue:
    """A value that must be equal, and what it reads like: an enum, a date, a class."""

    kind: str
    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class ObjectParts:
    """What an object, a table or a container of another class holds, by name."""

    kind: str
    parts: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class TensorParts:
    """A tensor of torch.

    Attributes:
        kind: its class.
        traits: type of number, layout, device, and whether it is a lazy view, in words.
        precision: relative rounding error of its numbers, which NumPy may not have; 0 if whole.
        values: its numbers on the host.
    """

    kind: str
    traits: tuple[str, ...]
    precision: float
    values: np.ndarray

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self.values, dtype)


@dataclass(frozen=True, eq=False)
class SparseParts:
    """A sparse matrix of SciPy: the places and values of its elements."""

    kind: str
    format: str
    shape: tuple[int, ...]
    rows: np.ndarray
    columns: np.ndarray
    data: np.ndarray

    @property
    def dtype(self) -> Any:
        """Type of number."""
        return self.data.dtype

    def tocsr(self) -> Any:
        """Return the matrix, in rows."""
        import scipy.sparse

        places = (self.rows, self.columns)
        return scipy.sparse.coo_matrix((self.data, places), shape=self.shape).tocsr()


@dataclass(frozen=True, eq=False)
class ScalarPart:
    """A number of NumPy."""

    value: np.ndarray


@dataclass(frozen=True, eq=False)
class NumbersPart:
    """A list of numbers of one class of Python."""

    values: np.ndarray
    is_tuple: bool


@dataclass(frozen=True, eq=False)
class ObjectArrayPart:
    """An array of objects."""

    shape: tuple[int, ...]
    items: list[Any]


@dataclass(frozen=True, eq=False)
class MaskedPart:
    """A masked array of NumPy."""

    data: np.ndarray
    mask: np.ndarray
    fill_value: np.ndarray


@dataclass(frozen=True, eq=False)
class FieldsPart:
    """An array with named fields; ``fields`` is its type's description."""

    fields: list[Any]
    shape: tuple[int, ...]
    content: np.ndarray


STAND_INS = (ExactValue, ObjectParts, TensorParts, SparseParts)
"""What stays in a restored output, because its class is not made."""
SENT_CLASSES = (*STAND_INS, ScalarPart, NumbersPart, ObjectArrayPart, MaskedPart, FieldsPart)
