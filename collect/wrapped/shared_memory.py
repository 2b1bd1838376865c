"""What a result shares its memory with: arguments, earlier results, or itself.

A function that returns a new array may not become one that returns a view of its argument, or the
same buffer every time: its caller would find that its data changes.
"""

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from foretune.collect.wrapped import values as arrays

Effects = frozenset[str]
"""What a call does besides its result, in words that complete "…, and the default does not"."""
MAX_WORK = 10_000  # for the exact test whether two strided arrays overlap
ITSELF = "parts of its output share memory"
EARLIER = "its output shares memory with the output of the call before"
READ_ONLY = "its output is read-only"
WITH_GRADIENTS = "its output is recorded for gradients"
WITHOUT_GRADIENTS = "its output is not recorded for gradients"


_shares_memory: Any = np.shares_memory


def shared_memory(returned: Any, arguments: Sequence[Any], earlier: Any) -> Effects:
    """Return what a result shares its memory with; ``earlier`` is the result of the call before."""
    found = set()
    buffers = list(_buffers(returned))
    for number, argument in enumerate(arguments):
        if any(_overlap(buffer, argument) for buffer in buffers):
            found.add(f"its output shares memory with array {number} of its arguments")
    if any(_overlap(a, b) for a in buffers for b in _buffers(earlier)):
        found.add(EARLIER)
    if any(_overlap(a, b) for a, b in combinations(buffers, 2)):
        found.add(ITSELF)
    for buffer in buffers:
        if isinstance(buffer, np.ndarray) and not buffer.flags.writeable:
            found.add(READ_ONLY)
        if isinstance(buffer, np.ndarray) and _repeats_itself(buffer.shape, buffer.strides):
            found.add(ITSELF)
        if arrays.is_tensor(buffer):
            found |= _effects_of_tensor(buffer)
    return frozenset(found)


def _effects_of_tensor(tensor: Any) -> set[str]:
    found = {WITH_GRADIENTS if tensor.requires_grad else WITHOUT_GRADIENTS}
    is_strided = str(tensor.layout) == "torch.strided"
    if is_strided and _repeats_itself(tuple(tensor.shape), tuple(tensor.stride())):
        found.add(ITSELF)
    return found


def _buffers(value: Any) -> Iterator[Any]:
    """Yield the arrays, tensors and lists of a value, also inside tables and sparse matrices."""
    if isinstance(value, np.ma.MaskedArray):
        yield np.ma.getdata(value)
    elif arrays.is_array(value):
        yield value
    elif (parts := _parts(value)) is not None:
        for part in parts:
            yield from _buffers(part)
    else:
        yield from _parts_of_table(value)


def _parts(value: Any) -> Iterable[Any] | None:
    """Return what a container or object holds; None for other values."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | deque):
        return value
    attributes = arrays.parts_of_object(value)
    return None if attributes is None else attributes.values()


def _parts_of_table(value: Any) -> Iterator[Any]:
    """Yield the numbers of a table of pandas or a sparse matrix of SciPy."""
    pandas, sparse = (sys.modules.get(name) for name in ("pandas", "scipy.sparse"))
    if pandas is not None and isinstance(value, pandas.DataFrame):
        for number in range(value.shape[1]):
            column = value.iloc[:, number].array
            yield _Protected(column.to_numpy())
    elif pandas is not None and isinstance(value, pandas.Series):
        yield _Protected(value.array.to_numpy())
    elif sparse is not None and sparse.issparse(value) and isinstance(value.data, np.ndarray):
        yield value.data


class _Protected:
    """The memory of a table. pandas returns read-only views of it, which are not the result."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def _overlap(one: Any, other: Any) -> bool:
    """Whether two arrays, tensors or lists share memory."""
    one, other = (x.array if isinstance(x, _Protected) else x for x in (one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        try:
            return bool(_shares_memory(one, other, max_work=MAX_WORK))
        except np.exceptions.TooHardError:
            return True
    if arrays.is_tensor(one) and isinstance(other, np.ndarray):
        one, other = other, one
    if arrays.is_tensor(other) and other.device.type == "cpu" and isinstance(one, np.ndarray):
        return bool(np.may_share_memory(one, _as_array(other)))
    if arrays.is_tensor(one) and arrays.is_tensor(other):
        return _storage(one) == _storage(other) != 0
    return one is other and isinstance(one, list)


def _as_array(tensor: Any) -> Any:
    try:
        return tensor.detach().numpy()
    except (TypeError, RuntimeError):  # a type that NumPy lacks, or a lazy view
        return np.zeros(0)


def _storage(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):  # a sparse tensor
        return 0


def _repeats_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements of an array share memory, like those of a broadcast one."""
    if 0 in shape:
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(strides, shape, strict=True))
