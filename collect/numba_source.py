"""Compiling kernels that are written per configuration: Python source in, Numba function out."""

from functools import lru_cache
from typing import Any

from foretune.extras import require


def function_source(name: str, arguments: str, body: list[str]) -> str:
    """Return the source of ``def name(arguments)`` with one line per element of ``body``."""
    return "\n".join([f"def {name}({arguments}):", *(f"    {line}" for line in body)]) + "\n"


def compile_function(source: str, name: str, **functions: Any) -> Any:
    """Compile the function ``name`` of ``source`` without the GIL and with contracted FMAs.

    The names of `foretune.collect.simd` and ``functions`` (already compiled) are in its scope.
    Compilation for concrete argument types happens on the first call. The same source and
    functions give the same compiled function.

    Raises:
        MissingExtra: Numba is not installed.
    """
    return _compile_function(source, name, tuple(functions.items()))


@lru_cache(maxsize=2048)
def _compile_function(source: str, name: str, functions: tuple[tuple[str, Any], ...]) -> Any:
    numba = require("numba", "cpu", "a CPU kernel")
    from foretune.collect import simd

    scope = {**vars(simd), **dict(functions)}
    exec(source, scope)
    return numba.njit(
        scope[name], nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy"
    )
