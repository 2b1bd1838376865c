"""The import formats; each has a module with one function that reads one file."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from foretune.datasets.importers.files import JSON, TABLES
from foretune.datasets.importers.request import Request
from foretune.errors import UnknownName

Reader = Callable[[Path, Request], pd.DataFrame]
"""Returns a file's rows as run-table columns; invalid rows are dropped and counted later.

Raises `WrongFile` for a file of another format, `RunTableError` for a damaged one.
"""

_HERE = "foretune.datasets.importers"


@dataclass(frozen=True)
class Format:
    """A format of another tool.

    Attributes:
        reader: ``module:function`` of its `Reader`, imported on use.
        suffixes: file name suffixes to look for in folders.
        takes_mapping: whether the user maps the file's columns.
        locate: ``module:function`` that turns the FILE argument into a path, for tools that can
            find their own data; empty if there is none.
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
    "optuna": Format(
        f"{_HERE}.optuna_studies:read", (".db", ".sqlite", ".sqlite3"), takes_mapping=True
    ),
    "t4": Format(f"{_HERE}.t4:read", JSON),
    "torch-profiler": Format(f"{_HERE}.torch_profiler:read", JSON),
    "triton": Format(f"{_HERE}.triton:read", (".autotune.json",), takes_mapping=True),
    "vidur": Format(f"{_HERE}.vidur:read", TABLES),
}
"""Format name -> format."""


def find_format(name: str) -> Format:
    """Return the format called ``name``; raises UnknownName if there is none."""
    if name not in FORMATS:
        raise UnknownName("format", name, FORMATS)
    return FORMATS[name]


def load_function(reference: str) -> Callable[..., object]:
    """Import and return ``module:function``."""
    module, _, function = reference.partition(":")
    return getattr(importlib.import_module(module), function)
