"""Reads untrusted files within limits; atomic writes; file lock."""

import contextlib
import gzip
import io
import json
import os
import re
import stat
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.errors import ForetuneError, OutputError

if TYPE_CHECKING:
    import numpy as np

MAX_BYTES = 2 << 30  # maximum size of a file, packed or unpacked
FREE_BYTES = 32 << 20
MAX_GROWTH = 32
"""A file may unpack to `FREE_BYTES`, or to `MAX_GROWTH` times its size if that is more."""
MAX_CELLS = 1 << 30
"""Maximum number of cells of a table; a constant column compresses to almost nothing."""
FREE_CELLS = 32 << 20
MAX_CELLS_PER_BYTE = 16
"""A file may hold `FREE_CELLS`, or `MAX_CELLS_PER_BYTE` times its size if that is more."""
MAX_COLUMNS = 4096  # maximum number of columns of a table
_LONG_INTEGER = re.compile(r"\d{19}")
StrPath = str | os.PathLike[str]


def require_writable(folder: Path, name: str) -> None:
    """Create ``folder`` if needed; raise OutputError about ``name`` if it is read-only."""
    with translate_write_errors(f"{name} {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextmanager
def translate_write_errors(
    target: object, error: type[ForetuneError] = OutputError
) -> Iterator[None]:
    """Turn an OSError of a writer into ``error``, which says that ``target`` is not written."""
    try:
        yield
    except OSError as e:
        raise error(f"cannot write {target}: {e.strerror or e}") from e


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
    if isinstance(e, UnicodeDecodeError):
        return "it is not UTF-8 text"
    text = (getattr(e, "strerror", None) or str(e)).strip().partition("\n")[0][:200]
    return f"{text} is missing" if isinstance(e, KeyError) else text or type(e).__name__


def require_regular_file(path: StrPath) -> Path:
    """Return ``path`` if it is a regular file of at most `MAX_BYTES`, not a device or a pipe."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is not a regular file")
    require_size(found.st_size)
    return Path(path)


def read_bytes(path: StrPath) -> bytes:
    """Return the content of a regular file, unpacked if its name ends with ``.gz``."""
    data = require_regular_file(path).read_bytes()
    if not os.fspath(path).lower().endswith(".gz"):
        return data
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        unpacked = file.read(_max_bytes(len(data)) + 1)
    require_size(len(unpacked), len(data))
    return unpacked


def read_json(path: StrPath, kind: type = dict) -> Any:
    """Return the JSON document in a file; see `parse_json`."""
    return parse_json(read_bytes(path), kind)


def parse_json(text: bytes | str, kind: type = dict, *, strict: bool = True) -> Any:
    """Parse a JSON document of type ``kind``.

    Duplicate names and integers of more than 64 bits raise ValueError, and control characters in
    texts, unless it is not ``strict``.
    """
    text = text if isinstance(text, str) else text.decode("utf-8-sig")
    parse_int = _bounded_int if _LONG_INTEGER.search(text) else None  # it takes time
    try:
        document = json.loads(
            text,
            parse_int=parse_int,
            object_pairs_hook=_reject_duplicate_names,
            strict=strict,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, kind):
        raise ValueError(f"it is not a JSON {'object' if kind is dict else 'list'}")
    return document


def read_arrays(path: StrPath) -> "dict[str, np.ndarray]":
    """Return the arrays in a NumPy archive."""
    import numpy as np

    packed = io.BytesIO(read_bytes(path))
    with zipfile.ZipFile(packed) as archive:
        require_size(sum(part.file_size for part in archive.infolist()), len(packed.getbuffer()))
    with np.load(packed, allow_pickle=False) as data:
        return {name: np.asarray(data[name]) for name in data.files}


def _reject_duplicate_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{name!r} occurs twice")
    return found


def _bounded_int(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        raise ValueError(f"the integer {digits[:20]}… has more than 64 bits")
    return int(digits)


def require_size(size: int, packed: int | None = None) -> None:
    """Raise ValueError if ``size`` bytes, unpacked from ``packed`` bytes if given, are too many."""
    limit = MAX_BYTES if packed is None else _max_bytes(packed)
    if size > limit:
        raise ValueError(f"it has {size >> 20:,} MiB or more, but the limit is {limit >> 20:,}")


def _max_bytes(packed: int) -> int:
    return min(MAX_BYTES, max(FREE_BYTES, MAX_GROWTH * packed))


def require_cells(cells: int, columns: int, size: int = MAX_CELLS) -> None:
    """Raise ValueError if a table, in a file of ``size`` bytes, has too many cells or columns."""
    limit = min(MAX_CELLS, max(FREE_CELLS, MAX_CELLS_PER_BYTE * size))
    if columns > MAX_COLUMNS:
        raise ValueError(f"it has {columns:,} columns, but the limit is {MAX_COLUMNS:,}")
    if cells > limit:
        raise ValueError(f"it declares {cells:,} cells, but the limit is {limit:,}: split it")


class Lock:
    """File lock, held until `release` or until the process ends.

    Raises OutputError if another process holds it, or the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        from filelock import FileLock, Timeout

        self._file = path.with_name(f".{path.name}.lock")
        self._lock = FileLock(self._file, thread_local=False)  # any thread may release it
        with translate_write_errors(f"to {path.parent.absolute()}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                raise OutputError(
                    f"{path} is in use by another process: wait for it, or kill it"
                ) from None

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                self._file.unlink()  # before the release: it is still ours
            self._lock.release()


def open_private(path: StrPath, flags: int = os.O_RDWR) -> int:
    """Open a file; if it does not exist, create it for its owner alone (0600). An ``opener``."""
    return os.open(path, flags | os.O_CREAT, 0o600)


@contextmanager
def atomic_write(
    path: StrPath, error: type[ForetuneError] = OutputError, what: str = "", private: bool = False
) -> Iterator[Path]:
    """Yield a temporary path, which becomes ``path`` on success.

    Raises ``error`` if it cannot be written. With ``private``, only the owner can read a new file;
    an existing one keeps its permissions.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with translate_write_errors(f"{what}{path}", error):
            path.parent.mkdir(parents=True, exist_ok=True)
            if private:
                os.close(open_private(temporary))
                if path.exists():
                    temporary.chmod(path.stat().st_mode & 0o777)
            yield temporary
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
