"""What a compiling process is asked for."""

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from foretune.collect.compiled.targets import Target
from foretune.errors import ForetuneError, UsageError
from foretune.extras import require


@dataclass(frozen=True)
class CompileRequest:
    """What all configurations of one batch have in common.

    Attributes:
        path: where modules are looked for, like ``sys.path``.
        kernel: ``module:attribute``.
        args: positional arguments, described.
        kwargs: the same by name.
        target: what to compile for.
        tier: ``full``, or ``ttgir`` for the first stages only.
        cache_dir: Triton's cache; empty for the one that is set.
    """

    path: tuple[str, ...]
    kernel: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Target
    tier: str
    cache_dir: str = ""


def load_kernel(reference: str, compiling: bool = True) -> Any:
    """Return the kernel called ``module:attribute``.

    Args:
        reference: what it is called.
        compiling: it is to be compiled, even if its module would interpret it.

    Raises:
        UsageError: there is none, or its module cannot be imported.
        MissingExtra: Triton is not installed.
    """
    module, colon, attribute = reference.partition(":")
    if not colon or not module or not attribute:
        raise UsageError(f"kernel {reference!r}: give MODULE:NAME, like my_kernels:softmax")
    _refuse_file(reference, module, attribute)
    try:
        with _interpreter_off() if compiling else nullcontext():
            found = importlib.import_module(module)
    except ForetuneError:
        raise
    except ImportError as e:
        raise UsageError(f"module {module!r} cannot be imported here: {e}") from e
    except (Exception, SystemExit) as e:
        raise UsageError(f"module {module!r} fails when imported: {type(e).__name__}: {e}") from e
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"module {module!r} has no {attribute!r}")
        found = getattr(found, part)
    return found


def _refuse_file(reference: str, module: str, attribute: str) -> None:
    """Raise UsageError if ``module`` is the path of a file."""
    path = PurePath(module)
    if len(path.parts) == 1 and path.suffix != ".py" and not module.startswith("."):
        return
    name = path.stem if path.suffix == ".py" else path.name.lstrip(".")
    advice = "" if path.parent == PurePath() else f"go to the folder {path.parent} and "
    raise UsageError(
        f"kernel {reference!r} names a file, not a module: {advice}give {name}:{attribute}"
    )


@contextmanager
def _interpreter_off() -> Iterator[None]:
    """Within, `triton.jit` makes kernels that can be compiled, whatever the environment says.

    Some modules ask for the interpreter themselves where they find no GPU.
    """
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "0"  # Triton itself may be imported only now
    try:
        require("triton", "gpu", "compiling Triton kernels")
        from triton import knobs

        knobs.runtime.interpret = False  # stands against the environment
        try:
            yield
        finally:
            del knobs.runtime.interpret
    finally:
        os.environ.pop("TRITON_INTERPRET", None)
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before
