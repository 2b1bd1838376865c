"""Writing a file in one step: who reads it finds the old one or the new one, never half of it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from foretune.errors import ForetuneError, OutputError


@contextlib.contextmanager
def atomic_write(
    path: str | os.PathLike[str], error: type[ForetuneError] = OutputError, what: str = ""
) -> Iterator[Path]:
    """Yield a path to write to; what is there when all went well becomes ``path``.

    Raises:
        OutputError, or ``error``: the file cannot be written; it says ``what`` the file is.
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
