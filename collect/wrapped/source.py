"""The source of a kernel in C, C++, OpenCL, CUDA or HIP, and the shape of its launches.

Names and meanings are those of Kernel Tuner, whose users need not learn others: knobs become
``#define``s, the knobs ``block_size_x``, ``block_size_y``, ``block_size_z`` are the size of a work
group, and the problem's size over them is how many there are.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from foretune.collect.wrapped.arguments import ResettingLaunch
from foretune.errors import UsageError
from foretune.expression import Expression

BLOCK = ("block_size_x", "block_size_y", "block_size_z")
GRID = ("grid_size_x", "grid_size_y", "grid_size_z")
DEFAULT_BLOCK = (256, 1, 1)
"""Of a kernel whose knobs do not say it."""

Amount = int | str | Callable[[dict[str, Any]], Any]
"""A number, an expression of knobs, or a function of a mapping of them."""
Size = Amount | Sequence[Amount]
Divisors = Amount | Sequence[Amount] | None
Language = Literal["C", "OpenCL", "CUDA", "HIP"]
TORCH_LANGUAGES: tuple[Language, ...] = ("CUDA", "HIP")
"""Languages whose arrays are tensors of torch, whose events time launches."""


@dataclass(frozen=True)
class Source:
    """The source of a kernel.

    Attributes:
        name: of the function in it.
        text: the source, or a function from knobs to it.
        language: C stands for C++, too.
        suffix: of the file it came from; ``.c`` is compiled as C, others as C++.
        extra_files: further files that it includes, by name; knobs are defined in them as well.
        folder: where other headers lie.
        compiler: command; None: the system's.
        options: of the compiler; ``{knob}`` stands for a value.
        platform: number of the OpenCL platform.
        device: number of its device, or of torch's GPU.
        shared_bytes: dynamic shared memory of a block, in CUDA and HIP.
        constants: what ``__constant__`` variables hold, in CUDA and HIP.
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
    """What one configuration is compiled from.

    Attributes:
        source: of which kernel.
        text: with the configuration's definitions before it.
        extra_files: likewise.
        options: of the compiler.
        threads: size of a work group.
        grid: how many there are.
        shared_bytes: dynamic shared memory of each, in CUDA and HIP.
    """

    source: Source
    text: str
    extra_files: Mapping[str, str]
    options: tuple[str, ...] | None
    threads: tuple[int, int, int]
    grid: tuple[int, int, int]
    shared_bytes: int = 0


class Backend(Protocol):
    """Compiles and launches one language."""

    def toolchain(self, source: Source) -> str:
        """Return the versions of what compiles and runs it.

        Raises:
            ForetuneError: it is not there.
        """

    def launch(self, build: Build, arguments: Sequence[Any]) -> ResettingLaunch:
        """Compile and return a launch on copies of ``arguments``.

        Raises:
            RuntimeError: the compiler refuses; the message is its first error.
        """


class LaunchShape:
    """How many threads a configuration is launched with.

    Args:
        size: of the problem, one to three dimensions.
        divisors: of each dimension; None: the work group's size.
        names: of the knobs that are the work group's size.
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
        """Return how many work groups there are."""
        size: Any = self.size(dict(config)) if callable(self.size) else self.size
        listed = list(size) if isinstance(size, list | tuple) else [size]
        sizes = [evaluate_amount(part, config) for part in [*listed, 1, 1][:3]]
        counts = []
        for i, (extent, declared) in enumerate(zip(sizes, self.divisors, strict=True)):
            if declared is None:
                parts: Sequence[Any] = [config.get(self.names[i], 1)]
            else:
                parts = list(declared) if isinstance(declared, list | tuple) else [declared]
            divisor = math.prod(evaluate_amount(part, config) for part in parts)
            counts.append(math.ceil(extent / divisor))
        x, y, z = counts
        return x, y, z

    def problem_sizes(self) -> dict[str, Any]:
        """Return the problem's size by name: ``n``, or ``x``, ``y``, ``z``."""
        sizes = list(self.size) if isinstance(self.size, list | tuple) else [self.size]
        plain = [_size_value(size) for size in sizes]
        return dict(zip("xyz" if len(plain) > 1 else "n", plain, strict=False))

    def expressions(self) -> list[str]:
        """Return the expressions in which knobs may stand."""
        parts = [self.size, *self.divisors]
        flat = [q for p in parts for q in (p if isinstance(p, list | tuple) else [p])]
        return [part for part in flat if isinstance(part, str)]

    def functions(self) -> list[Callable[..., Any]]:
        """Return the functions that may use any knob."""
        parts = [self.size, *self.divisors]
        flat = [q for p in parts for q in (p if isinstance(p, list | tuple) else [p])]
        return [part for part in flat if callable(part)]


def evaluate_amount(part: Amount, config: Mapping[str, Any]) -> float:
    """Return a part of a size, or a divisor, for a configuration."""
    if callable(part):
        return float(part(dict(config)))
    if isinstance(part, str):
        columns = {name: np.array([value]) for name, value in config.items()}
        expression = Expression(part, "size")
        if unknown := expression.names - columns.keys():
            raise UsageError(f"{part!r} uses {sorted(unknown)[0]!r}, which is no knob")
        return float(expression.evaluate(columns)[0])
    return float(part)


def _size_value(size: Any) -> Any:
    return size if isinstance(size, str) else "function" if callable(size) else int(size)


def first_error(log: str) -> str:
    """Return the line of a compiler's output that says what is wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    wrong = [line for line in lines if "error" in line.lower()]
    return (wrong or lines or ["it says nothing"])[0]


def read_source(source: Any) -> tuple[str | Callable[[dict[str, Any]], str], dict[str, str], str]:
    """Return the text, the other files' contents by name, and the main file's path, if any.

    Args:
        source: the source itself, a file's name, a list of them, or a function from knobs to it.

    Raises:
        UsageError: a file is not there.
    """
    if callable(source):
        return source, {}, ""
    listed = [source] if isinstance(source, str | Path) else list(source)
    main, *others = map(str, listed)
    if "\n" in main or "(" in main:  # no file is called like that
        return main, {Path(o).name: _read(o) for o in others}, ""
    return _read(main), {Path(o).name: _read(o) for o in others}, main


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as e:
        raise UsageError(f"there is no file {path}: give the source itself, or its file") from e
