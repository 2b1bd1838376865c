"""Hashes the code of a kernel or a family: rows measured with other code do not apply to it.

The hash covers the modules of the class and of its bases, and the modules that they import (see
`module_code`). Comments, docstrings and layout do not change the hash, nor does the version of
Python.
"""

import hashlib
import sys
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType

from foretune.support.captures import INSTALL_FOLDERS
from foretune.support.function_code import function_code
from foretune.support.module_code import SourceFiles, source_file

FORETUNE_ROOT = Path(__file__).parents[2]
"""Folder from which Foretune is imported."""


@cache
def code_hash(kind: type, base: type) -> str:
    """Hash the code of a class and of those bases that derive from ``base``, as 16 hex digits.

    If the class has no file, as in an interpreter, its methods are hashed.
    """
    text = _class_files(kind, base).text or _methods_code(kind)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def uninstalled_sources(kind: type, base: type) -> list[Path]:
    """Return the uninstalled files and folders that another machine needs to import a class."""
    files = _class_files(kind, base)
    sources = set()
    for root in files.roots:
        if root.name in INSTALL_FOLDERS or root == FORETUNE_ROOT:
            continue
        for file in files.code:
            # A package is its whole folder, a single module its file.
            if file.is_relative_to(root):
                sources.add(root / file.relative_to(root).parts[0])
    return sorted(sources)


@cache
def packages_hash(*packages: ModuleType) -> str:
    """Hash all Python files of packages and their subpackages, as 64 hex digits."""
    digest = hashlib.sha256()
    for package in packages:
        for root in package.__path__:
            for path in sorted(Path(root).rglob("*.py")):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _class_files(kind: type, base: type) -> SourceFiles:
    """Return the files of a class and of those bases that derive from ``base``."""
    files = SourceFiles()
    modules = {c.__module__ for c in kind.__mro__ if issubclass(c, base)}
    for module in modules:
        file = source_file(sys.modules.get(module))
        is_base_class = module.rpartition(".")[0] == "foretune"
        if file is not None and not is_base_class:
            files.add(module, file)
    return files


def _methods_code(kind: type) -> str:
    """Return the code of a class without a file: that of its methods."""
    # The function in a static or class method is its `__func__`.
    members = [getattr(member, "__func__", member) for member in vars(kind).values()]
    functions = [member for member in members if isinstance(member, FunctionType)]
    return "\n".join([kind.__qualname__, *sorted(map(function_code, functions))])
