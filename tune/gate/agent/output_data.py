"""Outputs as JSON, so that a gate can compare those of two revisions.

What is no plain value, array, table or container becomes ``{"unknown": class}``: it is not
compared, and the gate says so.
"""

import base64
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

ARRAY_KINDS = "biufcSU"
"""Kinds of NumPy types whose bytes are plain values."""
MAX_BYTES = 1 << 26
"""Largest array that is sent: 64 MiB."""
MAX_DEPTH = 30


def to_data(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON with one key per node: the kind of the value."""
    if depth > MAX_DEPTH:
        return {"unknown": "nested too deeply"}
    if value is None or isinstance(value, bool | int | str):
        return {"plain": value}
    if isinstance(value, float):
        return {"plain": value} if math.isfinite(value) else {"special": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        pairs = [[repr(key), to_data(inner, depth + 1)] for key, inner in value.items()]
        return {"mapping": pairs, "class": _class_of(value)}
    if isinstance(value, list | tuple):
        items = [to_data(inner, depth + 1) for inner in value]
        return {"sequence": items, "class": _class_of(value)}
    if isinstance(value, set | frozenset):
        return {"plain": sorted(map(repr, value))}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        pairs = [[name, to_data(getattr(value, name), depth + 1)] for name in names]
        return {"mapping": pairs, "class": _class_of(value)}
    return _array_or_unknown(value, depth)


def _array_or_unknown(value: Any, depth: int) -> Any:
    module = type(value).__module__.partition(".")[0]
    if module == "torch" and hasattr(value, "detach"):
        value = value.detach().cpu().resolve_conj().numpy()
    elif module == "pandas" and hasattr(value, "to_dict"):
        table = value.to_frame() if hasattr(value, "to_frame") else value
        columns = [[repr(name), to_data(table[name].to_numpy(), depth + 1)] for name in table]
        index = ["index", to_data(table.index.to_numpy(), depth + 1)]
        return {"mapping": [index, *columns], "class": _class_of(value)}
    if hasattr(value, "dtype") and hasattr(value, "tobytes"):
        return _array(value, depth)
    return {"unknown": _class_of(value)}


def _array(value: Any, depth: int) -> Any:
    if value.dtype.kind == "O":
        items = [to_data(item, depth + 1) for item in value.ravel().tolist()]
        return {"sequence": items, "class": f"array of objects {list(value.shape)}"}
    if value.dtype.kind in "mM":
        value = value.astype("int64")
    if value.dtype.kind not in ARRAY_KINDS or value.nbytes > MAX_BYTES:
        return {"unknown": f"array of {value.dtype} with {value.nbytes} bytes"}
    content = base64.b64encode(value.tobytes()).decode()
    return {"array": content, "dtype": value.dtype.str, "shape": list(value.shape)}


def _class_of(value: Any) -> str:
    return type(value).__qualname__
