"""Spoils files: bytes of any, values of JSON, cells of text, arrays in archives."""

import contextlib
import gzip
import io
import json
import random
import re
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

HOSTILE: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2,
    0.5,
    -0.0,
    1e308,
    10**9,
    10**30,
    10**400,
    -(2**63),
    float("nan"),
    float("inf"),
    "",
    "x",
    "ok",
    "\ud800",
    "9" * 5000,
    [],
    {},
    [[]],
    [1, 2],
    {"a": 1},
    [{}],
    [None],
]
"""What stands in place of a JSON value."""
WORDS = [
    "",
    "x",
    "nan",
    "inf",
    "-1",
    "0",
    "1e308",
    "9" * 400,
    "true",
    "None",
    ",",
    '"',
    "\n",
    ";",
    "(",
    "\x00",
    "ü",
    "1e400",
    "-0",
    "[]",
]
"""What stands in place of a word of a text."""
NUMBERS = [-1, -2, 0, 1, 2, 7, 255, 10**6, 10**9, 2**31 - 1, -(2**31), 2**62]
FLOATS = [*NUMBERS, np.nan, np.inf, -np.inf, 0.5, -1e308, 1e-320]

Spoiler = Callable[[random.Random], bytes]


def make_spoiler(name: str, data: bytes) -> Spoiler:
    """Return what spoils a file; two of three times so that it is still of its kind."""
    kind = next((k for suffix, k in _OF_KIND.items() if name.endswith(suffix)), None)
    structured = kind(data) if kind else None

    def spoil(rng: random.Random) -> bytes:
        if structured is None or rng.random() < 1 / 3:
            return spoil_bytes(data, rng)
        return structured(rng)

    return spoil


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, delete, insert, repeat or clear bytes."""
    new = bytearray(data)
    n = len(data)
    at = rng.randrange(n + 1)
    size = rng.choice([1, 2, 8, 64, 1024])
    how = rng.randrange(6)
    if how == 0:
        for _ in range(rng.choice([1, 1, 2, 8])):
            new[rng.randrange(n)] ^= 1 << rng.randrange(8)
    elif how == 1:
        del new[at:]
    elif how == 2:
        del new[at : at + size]
    elif how == 3:
        new[at:at] = rng.randbytes(size)
    elif how == 4:
        new[at:at] = new[max(0, at - size) : at]
    else:
        new[at : at + size] = bytes(len(new[at : at + size]))
    return bytes(new)


def _json(data: bytes) -> Spoiler:
    document = json.loads(data)
    places = [path for path, _ in _places(document)]

    def spoil(rng: random.Random) -> bytes:
        if rng.random() < 0.002:
            return b"[" * 100_000
        return json.dumps(_swapped(document, rng.choice(places), rng)).encode()

    return spoil


def _places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the path and the value of everything in a document."""
    found = [(path, document)]
    items: Any = document.items() if isinstance(document, dict) else ()
    for key, inner in enumerate(document) if isinstance(document, list) else items:
        found += _places(inner, (*path, key))
    return found


def _swapped(document: Any, path: tuple[Any, ...], rng: random.Random) -> Any:
    """Return a copy of a document with a value replaced, left out or twice."""
    if not path:
        return rng.choice(HOSTILE)
    key, *rest = path
    new = document.copy()
    if rest:
        new[key] = _swapped(document[key], tuple(rest), rng)
        return new
    how = rng.randrange(6)
    if how == 0:
        del new[key]
    elif how == 1 and isinstance(new, list):
        new.append(new[key])
    elif how == 1:
        new[f"{key}x"] = new.pop(key)
    else:
        new[key] = rng.choice(HOSTILE)
    return new


def _lines(data: bytes) -> Spoiler:
    """Spoil one line of a file with a JSON document in each."""
    lines = data.splitlines()
    spoilers = [_json(line) for line in lines]

    def spoil(rng: random.Random) -> bytes:
        at = rng.randrange(len(lines))
        return b"\n".join([*lines[:at], spoilers[at](rng), *lines[at + 1 :]]) + b"\n"

    return spoil


def _text(data: bytes) -> Spoiler:
    text = data.decode()
    words = [word.span() for word in re.finditer(r"[\w.+-]+|[,\"\n]", text)]

    def spoil(rng: random.Random) -> bytes:
        start, end = rng.choice(words)
        return (text[:start] + rng.choice(WORDS) + text[end:]).encode()

    return spoil


def _gz(data: bytes) -> Spoiler:
    spoil = _json(gzip.decompress(data))
    return lambda rng: gzip.compress(spoil(rng), 1)


def _each(spoil: Callable[[bytes, random.Random], bytes]) -> Callable[[bytes], Spoiler]:
    return lambda data: lambda rng: spoil(data, rng)


def _archive(data: bytes, rng: random.Random) -> bytes:
    """Spoil one array of an archive, or its bytes, and keep the checksums right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(parts))
    how = rng.randrange(8)
    if how == 0:
        del parts[name]
    elif how == 1:
        parts[name] = spoil_bytes(parts[name], rng)
    elif name.endswith(".json"):
        parts[name] = _json(parts[name])(rng)
    else:
        array = np.load(io.BytesIO(parts[name]))
        if name == "parameters.npy":  # of boosted trees: JSON
            array = np.array(_json(str(array).encode())(rng).decode())
        else:
            array = _array(array, rng)
        out = io.BytesIO()
        np.save(out, array)
        parts[name] = out.getvalue()
    new = io.BytesIO()
    with zipfile.ZipFile(new, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return new.getvalue()


def _array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    """Return an array with a number of it, its shape or its type replaced."""
    how = rng.randrange(6)
    if how == 0:
        return array.ravel()[: rng.randrange(array.size + 1)]
    if how == 1:
        return array.astype(rng.choice(["i1", "u8", "f2", "f8", "S3", "?"]))
    if how == 2:
        return array[None] if rng.random() < 0.5 else np.concatenate([array.ravel()] * 2)
    new = array.copy()
    flat = new.reshape(-1).view()
    if flat.size and flat.dtype.names:
        flat = flat[rng.choice(flat.dtype.names)]
    if flat.size:
        at = rng.randrange(flat.size)
        number = rng.choice(FLOATS)
        with contextlib.suppress(ValueError, OverflowError), np.errstate(all="ignore"):
            flat[at] = at if rng.random() < 0.2 else np.array(number).astype(flat.dtype)
    return new


def _parquet(data: bytes, rng: random.Random) -> bytes:
    import pyarrow.parquet as pq

    source = pq.read_table(io.BytesIO(data))
    table = source.to_pandas()
    column = rng.choice(list(table.columns))
    value = rng.choice([None, 0, -1, 1e308, np.nan, np.inf, "x", "", True, [1], b"\xff"])
    how = 0
    how = rng.randrange(4)
    if how == 0:
        table = table.drop(columns=column)
    elif how == 1:
        table = table.rename(columns={column: rng.choice([f"{column}x", "config.", "", "a.b"])})
    elif how == 2:
        table[column] = [value] * len(table)
    else:
        cells = list(table[column])
        cells[rng.randrange(len(cells))] = value
        table[column] = pd.Series(cells, dtype=object)
    out = io.BytesIO()
    try:
        table.to_parquet(out)
    except Exception:  # Parquet cannot hold it
        return spoil_bytes(data, rng)
    spoiled = pq.read_table(out)
    notes = dict(source.schema.metadata or {})
    notes.pop(b"pandas", None)
    if notes and rng.random() < 0.3:
        key = rng.choice(sorted(notes))
        notes[key] = rng.choice([b"", b"x", b"-1", b"99", b"[1]", b"{}", b'["nope"]', b"\xff"])
    out = io.BytesIO()
    pq.write_table(spoiled.replace_schema_metadata(notes), out)
    return out.getvalue()


_OF_KIND: dict[str, Callable[[bytes], Spoiler]] = {
    ".json.gz": _gz,
    ".json": _json,
    ".jsonl": _lines,
    ".journal": _lines,
    ".npz": _each(_archive),
    ".parquet": _each(_parquet),
    ".csv": _text,
    ".txt": _text,
}
