"""Outputs of calls as data: `describe` where they were made, `restore` where they are compared.

A described output consists of plain values, arrays, and the classes of `sent_values`; so
`foretune.collect.answers` can send it, and no code comes with it. What has no content that can be
read raises `NotSendable`.
"""

import inspect
import math
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.collect.answers import ARRAY_KINDS, MAX_DEPTH, UnreadableAnswer
from foretune.collect.wrapped import values as arrays
from foretune.collect.wrapped.call_arguments import CallResult, ExpectedResult
from foretune.collect.wrapped.output_comparison import (
    SCALARS,
    class_name,
    is_exact,
    is_sparse,
    is_table,
    tensor_precision,
)
from foretune.collect.wrapped.sent_values import (
    STAND_INS,
    ExactValue,
    FieldsPart,
    MaskedPart,
    NumbersPart,
    ObjectArrayPart,
    ObjectParts,
    ScalarPart,
    SparseParts,
    TensorParts,
)
from foretune.errors import MeasurementError, first_line
from foretune.support.identity import kind_of_index, type_of_column

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_NUMBER_TYPES: dict[type, Any] = {
    float: np.float64,
    complex: np.complex128,
    bool: np.bool_,
    int: np.int64,
}
"""Classes of numbers whose lists are sent as arrays."""
_SPARSE_DIMENSIONS = 2
_EXACT_LABELS = "biumM"
"""Kinds of labels of tables whose bytes are equal if they are."""


class NotSendable(MeasurementError):
    """An output, or a part of it, has no content that can be sent as data."""


def describe_result(result: CallResult | None) -> Any:
    """Return a result as data; raise NotSendable if it cannot be one."""
    if result is None:
        return None
    described: dict[str, Any] = {
        "returned": describe(result.returned),
        "written": {number: describe(array) for number, array in result.written.items()},
        "effects": sorted(result.effects),
    }
    if isinstance(result, ExpectedResult):
        described["layout"] = describe_result(result.layout)
        described["input_elements"] = result.input_elements
        described["shift"] = result.shift
    return described


def restore_result(described: Any) -> CallResult | None:
    """Invert `describe_result`; raise UnreadableAnswer if it is no result."""
    if described is None:
        return None
    try:
        returned = restore(described["returned"])
        written = {int(n): restore(array) for n, array in described["written"].items()}
        effects = frozenset(map(str, described["effects"]))
        if "layout" not in described:
            return CallResult(returned, written, effects)
        return ExpectedResult(
            returned,
            written,
            effects,
            layout=restore_result(described["layout"]),
            input_elements=int(described["input_elements"]),
            shift=float(described["shift"]),
        )
    except UnreadableAnswer:
        raise
    except Exception as e:
        raise UnreadableAnswer(f"it is no output: {first_line(e)}") from e


def has_stand_ins(value: Any) -> bool:
    """Whether a restored value has parts that are no objects of their classes."""
    if isinstance(value, STAND_INS):
        return True
    if isinstance(value, CallResult):
        return has_stand_ins([value.returned, value.written])
    if isinstance(value, Mapping):
        return any(map(has_stand_ins, (*value, *value.values())))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(has_stand_ins, value))
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return any(map(has_stand_ins, value.ravel()))
    return False


def describe(value: Any) -> Any:
    """Return a value as data; raise NotSendable if it cannot be one."""
    return _describe(value, depth=0)


def _describe(value: Any, depth: int) -> Any:
    if type(value) in _PLAIN:
        return value
    if depth >= MAX_DEPTH // 2:
        raise NotSendable("an output that is nested too deeply, or holds itself, cannot be sent")
    inner = depth + 1
    describe_container = _CONTAINERS.get(type(value))
    if describe_container is not None:
        return describe_container(value, inner)
    for applies, describe_kind in _KINDS:
        if applies(value):
            return describe_kind(value)
    described = {name: _describe(part, inner) for name, part in _parts(value).items()}
    return ObjectParts(class_name(value), described)


def _describe_dict(value: Any, depth: int) -> Any:
    return {_describe_key(key): _describe(part, depth) for key, part in value.items()}


def _describe_set(value: Any, depth: int) -> Any:
    return type(value)(_describe_key(element) for element in value)


def _describe_list(value: Any, depth: int) -> Any:
    """Describe a list or tuple; one of numbers is an array, which is short and fast to read."""
    kinds = set(map(type, value))
    number_type = _NUMBER_TYPES.get(next(iter(kinds))) if len(kinds) == 1 else None
    if number_type is not None:
        try:
            numbers: npt.NDArray[Any] = np.array(value, number_type)
        except OverflowError:  # a large whole number
            pass
        else:
            return NumbersPart(numbers, is_tuple=type(value) is tuple)
    return type(value)(_describe(part, depth) for part in value)


def _describe_key(key: Any) -> Any:
    """Describe a key, or an element of a set: it must be equal, and is hashable."""
    if type(key) in _PLAIN:
        return key
    if type(key) in (tuple, frozenset):
        return type(key)(map(_describe_key, key))
    if isinstance(key, np.generic) or is_exact(key):
        return ExactValue(class_name(key), _exact_text(key))
    raise NotSendable(f"a key of class {class_name(key)} cannot be sent")


def _exact_text(value: Any) -> str:
    if isinstance(value, re.Pattern):  # its text is cut off
        return repr((value.pattern, value.flags))
    return repr(value)


def _plain_array(array: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    if array.dtype.kind not in ARRAY_KINDS:
        raise NotSendable(f"a {kind} of {array.dtype} cannot be sent")
    return array


def _describe_array(array: npt.NDArray[Any], depth: int) -> Any:
    if array.dtype.kind == "O":
        items = [_describe(item, depth) for item in array.ravel()]
        return ObjectArrayPart(tuple(array.shape), items)
    if array.dtype.names:
        fields = array.dtype.descr
        if array.dtype.hasobject or np.dtype(fields) != array.dtype:
            raise NotSendable(f"an array of {array.dtype} cannot be sent")
        content = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        return FieldsPart(fields, tuple(array.shape), content)
    return _plain_array(array, "an array")


def _describe_exactly(value: Any) -> ExactValue:
    return ExactValue(class_name(value), _exact_text(value))


def _describe_scalar(value: Any) -> ScalarPart:
    return ScalarPart(_plain_array(np.asarray(value), class_name(value)))


def _describe_masked(value: Any) -> MaskedPart:
    data = _plain_array(np.ma.getdata(value), class_name(value))
    return MaskedPart(data, np.ma.getmaskarray(value), np.asarray(value.fill_value))


def _describe_tensor(tensor: Any) -> TensorParts:
    traits = (
        str(tensor.dtype).removeprefix("torch."),
        f"layout {tensor.layout}",
        f"device {tensor.device}",
        f"lazy conjugate {tensor.is_conj()}",
        f"lazy negation {tensor.is_neg()}",
    )
    return TensorParts(
        class_name(tensor),
        traits,
        tensor_precision(tensor),
        _plain_array(arrays.as_numpy(tensor), "a tensor"),
    )


def _describe_sparse(matrix: Any) -> SparseParts:
    if len(matrix.shape) != _SPARSE_DIMENSIONS:
        raise NotSendable(f"a sparse array of shape {matrix.shape} cannot be sent")
    listed = matrix.tocoo()
    return SparseParts(
        class_name(matrix),
        str(matrix.format),
        tuple(map(int, matrix.shape)),
        listed.row,
        listed.col,
        _plain_array(listed.data, class_name(matrix)),
    )


_CONTAINERS: dict[type, Callable[[Any, int], Any]] = {
    list: _describe_list,
    tuple: _describe_list,
    dict: _describe_dict,
    set: _describe_set,
    frozenset: _describe_set,
    np.ndarray: _describe_array,
}
_KINDS: list[tuple[Callable[[Any], bool], Callable[[Any], Any]]] = [
    (is_exact, _describe_exactly),
    (lambda value: isinstance(value, np.generic), _describe_scalar),
    (arrays.is_tensor, _describe_tensor),
    (lambda value: type(value) is np.ma.MaskedArray, _describe_masked),
    (is_sparse, _describe_sparse),
]
"""Kinds of values, and how they are described; other objects are described by their parts."""


def _parts(value: Any) -> dict[str, Any]:
    """Return what an object holds, by name; its class is compared beside."""
    if is_table(value):
        return _parts_of_table(value)
    if isinstance(value, Mapping):
        order = list(value) if isinstance(value, OrderedDict) else []
        return {"items": dict(value), "order": tuple(map(_describe_key, order))}
    if isinstance(value, list | tuple | deque):
        return {"maxlen": getattr(value, "maxlen", None), "elements": list(value)}
    if isinstance(value, set | frozenset):
        return {"elements": set(value)}
    if isinstance(value, SCALARS):
        return {"value": repr(value)}
    if isinstance(value, np.ndarray | float | complex):
        return {"values": np.array(value, subok=False)}
    attributes = arrays.parts_of_object(value)
    if attributes is not None:
        return attributes
    if inspect.isgenerator(value) or isinstance(value, Iterator) or inspect.isawaitable(value):
        raise NotSendable(f"a {class_name(value)} cannot be sent")
    try:
        values = np.asarray(value)
    except Exception as e:
        raise NotSendable(f"a {class_name(value)} cannot be sent: {first_line(e)}") from e
    return {"values": _plain_array(values, class_name(value))}


def _parts_of_table(table: Any) -> dict[str, Any]:
    """Return labels, names, types and values of a table, a column or an index of pandas."""
    parts: dict[str, Any] = {"name": repr(getattr(table, "name", None))}
    if hasattr(table, "columns"):
        parts["columns"] = _labels(table.columns)
    if hasattr(table, "index") and not callable(table.index):
        parts["index"] = _labels(table.index)
    columns = [table]
    if hasattr(table, "columns"):
        columns = [table.iloc[:, number] for number in range(table.shape[1])]
    for number, column in enumerate(columns):
        parts[f"type of column {number}"] = repr((column.dtype, type_of_column(column.dtype)))
        parts[f"column {number}"] = column.to_numpy()
    return parts


def _labels(index: Any) -> Any:
    """Describe labels, which must be equal, numbers included."""
    kind = repr(kind_of_index(index))
    values = index.to_numpy()
    if values.dtype.kind in _EXACT_LABELS:
        return [kind, len(index), values.tobytes()]
    return [kind, len(index), *map(repr, index)]


def restore(described: Any) -> Any:
    """Invert `describe`, except that objects stay what `sent_values` has for them.

    Raises UnreadableAnswer, or any error of NumPy, if it describes nothing.
    """
    if isinstance(described, list | tuple):
        return type(described)(map(restore, described))
    restore_part = _RESTORED.get(type(described))
    return described if restore_part is None else restore_part(described)


def _restore_dict(described: Any) -> Any:
    return {key: restore(part) for key, part in described.items()}


def _restore_parts(described: ObjectParts) -> ObjectParts:
    return ObjectParts(described.kind, _restore_dict(described.parts))


def _restore_numbers(described: NumbersPart) -> Any:
    numbers = described.values.tolist()
    return tuple(numbers) if described.is_tuple else numbers


def _restore_masked(described: MaskedPart) -> Any:
    make: Any = np.ma.MaskedArray
    return make(described.data, described.mask, fill_value=described.fill_value[()])


def _restore_fields(described: FieldsPart) -> npt.NDArray[Any]:
    dtype = np.dtype(described.fields)
    if dtype.hasobject:
        raise UnreadableAnswer("it has an array of an unknown type")
    return described.content.view(dtype).reshape(described.shape)


def _object_array(described: ObjectArrayPart) -> npt.NDArray[Any]:
    if math.prod(described.shape) != len(described.items):
        raise UnreadableAnswer("an array is cut off")
    flat = np.empty(len(described.items), object)
    for number, item in enumerate(described.items):
        flat[number] = restore(item)
    return flat.reshape(described.shape)


def _checked_sparse(described: SparseParts) -> SparseParts:
    """Return the parts if all places are in the matrix: SciPy does not check all of them."""
    if len(described.shape) != _SPARSE_DIMENSIONS:
        raise UnreadableAnswer("a sparse matrix has no two dimensions")
    places = (described.rows, described.columns)
    for indices, size in zip(places, described.shape, strict=True):
        is_index = indices.dtype.kind in "iu" and indices.ndim == 1
        if not is_index or len(indices) != described.data.size:
            raise UnreadableAnswer("a sparse matrix has no places")
        if len(indices) and not 0 <= indices.min() <= indices.max() < size:
            raise UnreadableAnswer("a sparse matrix has places outside")
    return described


_RESTORED: dict[type, Callable[[Any], Any]] = {
    dict: _restore_dict,
    ObjectParts: _restore_parts,
    SparseParts: _checked_sparse,
    ScalarPart: lambda described: described.value[()],
    NumbersPart: _restore_numbers,
    ObjectArrayPart: _object_array,
    MaskedPart: _restore_masked,
    FieldsPart: _restore_fields,
}
"""How parts are restored; others are plain values, or stay."""
