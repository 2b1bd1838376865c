"""Files from elsewhere: read within limits, and refused in one line.

A file that somebody sent must not run code, crash the process, eat the memory or wait for ever.
Only regular files are read, nothing is unpacked beyond `MOST_BYTES`, nothing is unpickled. What a
reader raises within `decoding` becomes one of our errors.
"""

import gzip
import io
import json
import os
import stat
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.errors import ForetuneError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

MOST_BYTES = 2 << 30
"""Of a file, and of what is packed in one."""
MOST_CELLS = 1 << 30
"""Of a table: a column that is all the same takes no room in a file."""
Place = str | os.PathLike[str]


@contextmanager
def decoding(
    place: object,
    error: type[ForetuneError],
    says: str,
    passes: type[ForetuneError] = ForetuneError,
) -> Iterator[None]:
    """Turn what readers raise into one of our errors; let ours pass.

    Args:
        place: what is read; the message begins with it.
        error: what is raised. Readers raise whatever they stumble over, so all is caught.
        says: the rest of the message; ``{}`` stands for the reason.
        passes: which of our errors pass as they are.
    """
    try:
        yield
    except passes:
        raise
    except Exception as e:
        raise error(f"{place} {says.replace('{}', _reason(e))}") from e


def _reason(e: Exception) -> str:
    text = (getattr(e, "strerror", None) or str(e)).strip().partition("\n")[0][:200]
    if isinstance(e, KeyError):
        return f"{text} is missing"
    return text or type(e).__name__


def regular(path: Place) -> Path:
    """Return ``path`` if it is a regular file that is not too large.

    Raises:
        OSError: it is something else, such as a device or a pipe, or not there.
        ValueError: it is too large.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is no regular file")
    _refuse_size(found.st_size)
    return Path(path)


def read_bytes(path: Place) -> bytes:
    """Return the content of a regular file, unpacked if its name ends with ``.gz``.

    Raises:
        OSError, EOFError, ValueError, zlib.error: it cannot be read, is damaged, or too large.
    """
    data = regular(path).read_bytes()
    if not os.fspath(path).endswith(".gz"):
        return data
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        unpacked = file.read(MOST_BYTES + 1)
    _refuse_size(len(unpacked))
    return unpacked


def read_json(path: Place, kind: type = dict) -> Any:
    """Return the JSON document in a file of ours: see `parse_json`.

    Raises:
        OSError, RecursionError, ValueError: it cannot be read, or is something else.
    """
    return parse_json(read_bytes(path), kind)


def parse_json(text: bytes | str, kind: type = dict) -> Any:
    """Return a JSON document of ours, in which no name may stand twice.

    Raises:
        RecursionError, ValueError: it is something else.
    """
    document = json.loads(text, object_pairs_hook=_once)
    if not isinstance(document, kind):
        raise ValueError(f"it is no {'object' if kind is dict else 'list'}")
    return document


def read_arrays(path: Place) -> "dict[str, np.ndarray]":
    """Return the arrays that NumPy wrote to an archive.

    Raises:
        OSError, ValueError, zipfile.BadZipFile, zlib.error: it cannot be read, or is damaged.
    """
    import numpy as np

    packed = io.BytesIO(read_bytes(path))
    with zipfile.ZipFile(packed) as archive:
        _refuse_size(sum(part.file_size for part in archive.infolist()))
    with np.load(packed, allow_pickle=False) as data:
        return {name: np.asarray(data[name]) for name in data.files}


def open_parquet(path: Place, dictionaries: bool = False) -> "pq.ParquetFile":
    """Return a Parquet file, opened; its text as dictionaries if they are wanted.

    Raises:
        OSError, ValueError, pyarrow.ArrowException: it cannot be read, is damaged, or too large.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = pq.read_metadata(regular(path))
    if about.num_rows * max(1, about.num_columns) > MOST_CELLS:
        raise ValueError(f"it says that it has {about.num_rows:,} rows")
    texts = [
        field.name for field in pq.read_schema(path)
        if dictionaries and (pa.types.is_string(field.type) or pa.types.is_large_string(field.type))
    ]  # fmt: skip
    return pq.ParquetFile(path, read_dictionary=texts)


def read_parquet(path: Place, dictionaries: bool = False) -> "pa.Table":
    """Return a Parquet table, with what `open_parquet` says."""
    return open_parquet(path, dictionaries).read()


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice")
    return found


def _refuse_size(size: int) -> None:
    if size > MOST_BYTES:
        raise ValueError(f"it has {size >> 20:,} MiB or more, {MOST_BYTES >> 20:,} are read")
