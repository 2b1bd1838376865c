"""Reads untrusted files within limits; atomic writes; file lock."""

import contextlib
import gzip
import io
import json
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.errors import ForetuneError, OutputError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

MAX_BYTES = 2 << 30
"""Maximum size of a file, packed or unpacked."""
MAX_CELLS = 1 << 30
"""Maximum number of cells of a table; a constant column compresses to almost nothing."""
StrPath = str | os.PathLike[str]


def require_writable(folder: Path, name: str) -> None:
    """Create ``folder`` if needed; raises OutputError, with this name of it, if it is read-only."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        raise OutputError(f"cannot write {name} {folder}: {e.strerror or e}") from e


@contextmanager
def translate_read_errors(
    source: object,
    error: type[ForetuneError],
    message: str,
    passthrough: type[ForetuneError] = ForetuneError,
) -> Iterator[None]:
    """Turn any exception of a reader into ``error``, with the message ``source message``.

    ``{}`` in the message is replaced by the reason. Errors of type ``passthrough`` are re-raised.
    """
    try:
        yield
    except passthrough:
        raise
    except Exception as e:
        raise error(f"{source} {message.replace('{}', _reason(e))}") from e


def _reason(e: Exception) -> str:
    text = (getattr(e, "strerror", None) or str(e)).strip().partition("\n")[0][:200]
    if isinstance(e, KeyError):
        return f"{text} is missing"
    return text or type(e).__name__


def require_regular_file(path: StrPath) -> Path:
    """Return ``path`` if it is a regular file of at most `MAX_BYTES`, not a device or a pipe."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is no regular file")
    _check_size(found.st_size)
    return Path(path)


def read_bytes(path: StrPath) -> bytes:
    """Return the content of a regular file, unpacked if its name ends with ``.gz``."""
    data = require_regular_file(path).read_bytes()
    if not os.fspath(path).endswith(".gz"):
        return data
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        unpacked = file.read(MAX_BYTES + 1)
    _check_size(len(unpacked))
    return unpacked


def read_json(path: StrPath, kind: type = dict) -> Any:
    """Return the JSON document in a file; see `parse_json`."""
    return parse_json(read_bytes(path), kind)


def parse_json(text: bytes | str, kind: type = dict) -> Any:
    """Parse a JSON document of type ``kind``; duplicate names raise ValueError."""
    document = json.loads(text, object_pairs_hook=_reject_duplicate_names)
    if not isinstance(document, kind):
        raise ValueError(f"it is no {'object' if kind is dict else 'list'}")
    return document


def read_arrays(path: StrPath) -> "dict[str, np.ndarray]":
    """Return the arrays in a NumPy archive."""
    import numpy as np

    packed = io.BytesIO(read_bytes(path))
    with zipfile.ZipFile(packed) as archive:
        _check_size(sum(part.file_size for part in archive.infolist()))
    with np.load(packed, allow_pickle=False) as data:
        return {name: np.asarray(data[name]) for name in data.files}


def open_parquet(path: StrPath, dictionaries: bool = False) -> "pq.ParquetFile":
    """Open a Parquet file; ``dictionaries`` encodes its text columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(require_regular_file(path))
    if metadata.num_rows * max(1, metadata.num_columns) > MAX_CELLS:
        raise ValueError(f"it says that it has {metadata.num_rows:,} rows")
    texts = [
        field.name for field in pq.read_schema(path)
        if dictionaries and (pa.types.is_string(field.type) or pa.types.is_large_string(field.type))
    ]  # fmt: skip
    return pq.ParquetFile(path, read_dictionary=texts)


def read_parquet(path: StrPath, dictionaries: bool = False) -> "pa.Table":
    """Return a Parquet table; see `open_parquet`."""
    return open_parquet(path, dictionaries).read()


def _reject_duplicate_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice")
    return found


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise ValueError(f"it has {size >> 20:,} MiB or more, {MAX_BYTES >> 20:,} are read")


class Lock:
    """File lock, held until `release` or until the process ends.

    Raises OutputError if another process holds it, or the folder cannot be written.

    Args:
        path: file to lock; the lock is a hidden file in the same folder.
    """

    def __init__(self, path: Path) -> None:
        from filelock import FileLock, Timeout

        self._file = path.with_name(f".{path.name}.lock")
        self._lock = FileLock(self._file, thread_local=False)  # any thread may release it
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise OutputError(
                f"{path} is in use by another process: wait for it, or kill it"
            ) from None
        except OSError as e:
            raise OutputError(f"cannot write to {path.parent}: {e.strerror or e}") from e

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                self._file.unlink()  # before the release: it is still ours
            self._lock.release()


@contextlib.contextmanager
def atomic_write(
    path: str | os.PathLike[str], error: type[ForetuneError] = OutputError, what: str = ""
) -> Iterator[Path]:
    """Yield a temporary path, which becomes ``path`` on success.

    Args:
        path: file to write.
        error: raised if the file cannot be written.
        what: describes the file in the message.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as e:
        raise error(f"cannot write {what}{path}: {e.strerror or e}") from e
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
