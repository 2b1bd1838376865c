"""The formats there are: each is one module with one function that reads one file."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from foretune.datasets.importers.files import JSON, TABLES
from foretune.datasets.importers.request import Request
from foretune.errors import UnknownName

Reader = Callable[[Path, Request], pd.DataFrame]
"""Returns a file's rows as run-table columns, impossible ones among them: they are counted later.

Raises `WrongFile` for a file of another kind, `RunTableError` for a damaged one.
"""

_HERE = "foretune.datasets.importers"


@dataclass(frozen=True)
class Format:
    """A format of another tool.

    Attributes:
        reader: ``module:function`` of its `Reader`, imported when it is needed.
        suffixes: how the names of its files end, for folders.
        takes_mapping: whether it takes a mapping: its files leave open what their columns mean.
        locate: ``module:function`` that turns the word given as FILE into a path, for tools that
            can find their own data; empty if there is none.
    """

    reader: str
    suffixes: tuple[str, ...]
    takes_mapping: bool = False
    locate: str = ""


FORMATS = {
    "aiconfigurator": Format(
        f"{_HERE}.aiconfigurator:read", TABLES, locate=f"{_HERE}.aiconfigurator:locate"
    ),
    "generic": Format(f"{_HERE}.generic:read", TABLES, takes_mapping=True),
    "kerneltuner": Format(f"{_HERE}.kerneltuner:read", JSON),
    "ncu": Format(f"{_HERE}.ncu:read", (".csv", ".txt")),
    "t4": Format(f"{_HERE}.t4:read", JSON),
    "triton": Format(f"{_HERE}.triton:read", (".autotune.json",), takes_mapping=True),
    "vidur": Format(f"{_HERE}.vidur:read", TABLES),
}
"""Format name -> format."""


def find_format(name: str) -> Format:
    """Return the format called ``name``.

    Raises:
        UnknownName: there is none.
    """
    if name not in FORMATS:
        raise UnknownName("format", name, FORMATS)
    return FORMATS[name]


def load_function(reference: str) -> Callable[..., object]:
    """Return the function that ``module:function`` names."""
    module, _, function = reference.partition(":")
    found: Callable[..., object] = getattr(importlib.import_module(module), function)
    return found
