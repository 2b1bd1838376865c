"""The source of a kernel in C, C++, OpenCL, CUDA or HIP, and the shape of its launches.

Names and meanings are those of Kernel Tuner. Knobs become ``#define``s. The knobs ``block_size_x``,
``block_size_y`` and ``block_size_z`` are the size of a work group. The number of work groups is the
problem size divided by them.
"""

import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from foretune.errors import UsageError
from foretune.support.expression import Expression

BLOCK = ("block_size_x", "block_size_y", "block_size_z")
GRID = ("grid_size_x", "grid_size_y", "grid_size_z")
DEFAULT_BLOCK = (256, 1, 1)  # default size of a work group

Amount = int | str | Callable[[dict[str, Any]], Any]
"""A number, an expression of knobs, or a function of a mapping of knobs."""
Size = Amount | Sequence[Amount]
Divisors = Amount | Sequence[Amount] | None
Language = Literal["C", "OpenCL", "CUDA", "HIP"]
TORCH_LANGUAGES: tuple[Language, ...] = ("CUDA", "HIP")
"""Languages that run on torch's GPU: arrays are torch tensors, and torch's events time launches."""


@dataclass(frozen=True)
class Source:
    """The source of a kernel: function ``name`` in ``text``, a string or a function of knobs.

    ``language`` C includes C++; files with ``suffix`` ``.c`` are compiled as C, others as C++.
    ``extra_files`` are headers by name, in which knobs are also defined; ``folder`` has other
    headers. ``compiler`` is a command (None: the system's); in its ``options`` ``{knob}`` is
    replaced by its value. ``platform`` is OpenCL's; ``device`` is the number of its device, or of
    torch's GPU. CUDA and HIP have dynamic ``shared_bytes`` per block, and ``constants``, the values
    of ``__constant__`` variables.
    """

    name: str
    text: str | Callable[[dict[str, Any]], str]
    language: Language
    suffix: str = ""
    extra_files: Mapping[str, str] = field(default_factory=dict)
    folder: str = "."
    compiler: str | None = None
    options: tuple[str, ...] | None = None
    platform: int = 0
    device: int = 0
    shared_bytes: Amount = 0
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Build:
    """Sources, options and launch shape of one configuration.

    The texts begin with the configuration's definitions. ``threads`` is the size of a work group,
    ``grid`` the number of work groups per dimension, ``shared_bytes`` the dynamic shared memory per
    work group in CUDA and HIP.
    """

    source: Source
    text: str
    extra_files: Mapping[str, str]
    options: tuple[str, ...] | None
    threads: tuple[int, int, int]
    grid: tuple[int, int, int]
    shared_bytes: int = 0


@contextmanager
def include_folders(build: Build) -> Iterator[list[str]]:
    """Write the extra files of a build, and yield the include folders."""
    with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
        for name, content in build.extra_files.items():
            Path(folder, name).write_text(content, encoding="utf-8")
        yield [folder, build.source.folder]


class LaunchShape:
    """Work groups and their size, for each configuration.

    ``size`` is the problem size, one to three dimensions. ``divisors`` are per dimension; None
    means the size of the work group, whose knobs are called ``names``.
    """

    def __init__(self, size: Size, divisors: Sequence[Divisors], names: Sequence[str]) -> None:
        self.size = size
        self.divisors = tuple(divisors)
        self.names = (*names, *BLOCK[len(names) :])

    def threads(self, config: Mapping[str, Any]) -> tuple[int, int, int]:
        """Return the size of a work group."""
        x, y, z = (
            int(config.get(name, default))
            for name, default in zip(self.names, DEFAULT_BLOCK, strict=True)
        )
        return x, y, z

    def grid(self, config: Mapping[str, Any]) -> tuple[int, int, int]:
        """Return the number of work groups per dimension."""
        size = self.size(dict(config)) if callable(self.size) else self.size
        sizes = [evaluate_amount(part, config) for part in [*_listed(size), 1, 1][:3]]
        counts = []
        for i, (extent, declared) in enumerate(zip(sizes, self.divisors, strict=True)):
            parts = _listed(config.get(self.names[i], 1) if declared is None else declared)
            divisor = math.prod(evaluate_amount(part, config) for part in parts)
            counts.append(math.ceil(extent / divisor))
        x, y, z = counts
        return x, y, z

    def problem_sizes(self) -> dict[str, Any]:
        """Return the problem size by name: ``n``, or ``x``, ``y``, ``z``."""
        sizes = _listed(self.size)
        plain = [s if isinstance(s, str) else "function" if callable(s) else int(s) for s in sizes]
        return dict(zip("xyz" if len(plain) > 1 else "n", plain, strict=False))

    def expressions(self) -> list[str]:
        """Return the expressions that may use knobs."""
        return [part for part in self._parts() if isinstance(part, str)]

    def functions(self) -> list[Callable[..., Any]]:
        """Return the functions that may use any knob."""
        return [part for part in self._parts() if callable(part)]

    def _parts(self) -> list[Any]:
        return [part for given in (self.size, *self.divisors) for part in _listed(given)]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def evaluate_amount(part: Amount, config: Mapping[str, Any]) -> float:
    """Return the value of a size or divisor for a configuration."""
    if callable(part):
        return float(part(dict(config)))
    if isinstance(part, str):
        columns = {name: np.array([value]) for name, value in config.items()}
        expression = Expression(part, "size")
        if unknown := expression.names - columns.keys():
            raise UsageError(f"{part!r} uses {sorted(unknown)[0]!r}, which is not a knob")
        return float(expression.evaluate(columns)[0])
    return float(part)


def substitute(text: str, values: Mapping[str, Any]) -> str:
    """Return ``text`` with ``{name}`` replaced for known names; other braces stay."""
    return re.sub(r"\{(\w+)\}", lambda m: str(values.get(m[1], m[0])), text)


def first_error(log: str) -> str:
    """Return the first error line of a compiler's output."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    wrong = [line for line in lines if "error" in line.lower()]
    return (wrong or lines or ["it is empty"])[0]


def read_source(source: Any) -> tuple[str | Callable[[dict[str, Any]], str], dict[str, str], str]:
    """Return the text, the contents of other files by name, and the path of the main file, if any.

    ``source`` is the source, a file name, a list of file names, or a function from knobs to a
    source. Raises UsageError if a file does not exist.
    """
    if callable(source):
        return source, {}, ""
    listed = [source] if isinstance(source, str | Path) else list(source)
    main, *others = map(str, listed)
    if "\n" in main or "(" in main:  # this is the source, not a file name
        text = main.removeprefix("\ufeff")  # a byte order mark
        return text, {Path(o).name: _read(o) for o in others}, ""
    return _read(main), {Path(o).name: _read(o) for o in others}, main


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")  # without a byte order mark
    except OSError as e:
        raise UsageError(f"there is no file {path}: give the source itself, or its file") from e
