"""C and C++ through the system's compiler: each configuration is a library with one function."""

import ctypes
import functools
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from foretune.collect.wrapped.call_arguments import Arguments, ResettingLaunch
from foretune.collect.wrapped.source import Build, Source, first_error, include_folders
from foretune.errors import UsageError
from foretune.kernel import Clock

DEFAULT_OPTIONS = ("-O3",)
COMPILERS = {"C": ("cc", "gcc", "clang"), "C++": ("c++", "g++", "clang++")}


def toolchain(source: Source) -> str:
    """Return the compiler's version."""
    return _version(_compiler(source))


def launch(build: Build, arguments: Sequence[Any]) -> ResettingLaunch:
    """Compile, load and return the function's launch."""
    function = _load(build)
    returns_time = re.search(rf"\bfloat\s+{build.source.name}\s*\(", build.text) is not None
    return _NativeLaunch(function, arguments, returns_time)


class _NativeLaunch(ResettingLaunch):
    """Launches of a function. A float that it returns is its time in milliseconds."""

    def __init__(self, function: Any, arguments: Sequence[Any], returns_time: bool) -> None:
        host = Arguments(tuple(arguments), {})
        super().__init__(host)
        self._function = function
        self._function.restype = ctypes.c_float if returns_time else None
        self._returns_time = returns_time
        self._c_arguments = [
            ctypes.c_void_p(a.ctypes.data)
            if isinstance(a, np.ndarray)
            else np.ctypeslib.as_ctypes_type(a.dtype)(a.item())
            for a in host.args
        ]

    def run(self) -> None:
        self._function(*self._c_arguments)

    def time_ms(self, clock: Clock, batch: int) -> float:
        """Return the time that the function returns, or the measured one, in ms."""
        if not self._returns_time:
            return super().time_ms(clock, batch)
        return float(np.mean([self._function(*self._c_arguments) for _ in range(batch)]))


@contextmanager
def compile_native(build: Build, compiler: str, *flags: str) -> Iterator[Path]:
    """Compile a source, and yield the path of the output, which is temporary.

    Raises RuntimeError with the compiler's first error.
    """
    with _written_source(build) as (main, options):
        output = main.with_suffix(".out")
        words = [*compiler.split(), *flags, str(main), *options, "-o", str(output)]
        done = _run(words)
        if done.returncode:
            raise RuntimeError(first_error(done.stderr).replace(str(main), "the source"))
        yield output


def listed_headers(build: Build) -> list[Path]:
    """Return the headers that the compiler reads for a build, without those of the system.

    Empty if the source does not compile: that error is reported when it is built.
    """
    with _written_source(build) as (main, options):
        done = _run([*_compiler(build.source).split(), "-MM", str(main), *options])
        if done.returncode:
            return []
        # "kernel.o: kernel.c a.h \\" and more lines; a space in a path is escaped.
        words = re.split(r"(?<!\\)\s+", done.stdout.replace("\\\n", " ").partition(":")[2])
        paths = [Path(word.replace("\\ ", " ")) for word in words if word]
        temporary = main.parent
        return [p.resolve() for p in paths if p.is_file() and not p.is_relative_to(temporary)]


@contextmanager
def _written_source(build: Build) -> Iterator[tuple[Path, list[str]]]:
    """Write a source to a temporary folder; yield its path, and the options to compile it with."""
    source, text = build.source, build.text
    is_c = _is_c(source)
    if not is_c and 'extern "C"' not in text:
        text = f'extern "C" {{\n{text}\n}}\n'
    options = list(DEFAULT_OPTIONS if build.options is None else build.options)
    if "#pragma omp" in text and not any("openmp" in option for option in options):
        options.append("-fopenmp")
    with include_folders(build) as folders:
        main = Path(folders[0], f"kernel{'.c' if is_c else '.cc'}")
        main.write_text(text, encoding="utf-8")
        yield main, [*(f"-I{folder}" for folder in folders), *options]


def _run(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)


def _load(build: Build) -> Any:
    source = build.source
    with compile_native(build, _compiler(source), "-shared", "-fPIC") as library:
        loaded = ctypes.CDLL(str(library))
    try:
        return getattr(loaded, source.name)
    except AttributeError:
        raise RuntimeError(f"the source has no function {source.name!r}") from None


def _is_c(source: Source) -> bool:
    if source.compiler is not None:
        name = Path(source.compiler.split()[0]).name
        return "++" not in name and source.suffix in ("", ".c", ".h")
    return source.suffix == ".c"


def _compiler(source: Source) -> str:
    language = "C" if _is_c(source) else "C++"
    candidates = (source.compiler,) if source.compiler else COMPILERS[language]
    for candidate in candidates:
        if shutil.which(candidate.split()[0]):
            return candidate
    raise UsageError(
        f"there is no compiler {' or '.join(candidates)}: install one, or give another compiler="
    )


@functools.cache
def _version(compiler: str) -> str:
    done = subprocess.run([*compiler.split(), "--version"], capture_output=True, text=True)
    return (done.stdout.splitlines() or [compiler])[0]
