"""The code of a module and of the modules that it imports.

In Foretune these are the modules under `HASHED_PREFIXES`, in another package its own modules, and
for a single file the files and packages in its folder. Other packages are identified by their
versions, which every row records.
"""

import ast
import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from foretune.support.captures import INSTALL_FOLDERS, is_user_module
from foretune.support.function_code import normalized_syntax

HASHED_PREFIXES = ("foretune.collect.", "foretune.features.families.")
"""Modules of Foretune whose code belongs to a kernel or a family that imports them."""


@dataclass
class SourceFiles:
    """Files with code, and the folders from which their modules are imported."""

    code: dict[Path, str] = field(default_factory=dict)
    """File -> its normalized code."""
    roots: set[Path] = field(default_factory=set)

    @property
    def text(self) -> str:
        """The code of all files; it does not depend on where they lie."""
        return "\n".join(sorted(self.code.values()))

    def add(self, module: str, file: Path) -> None:
        """Add a module, and the modules that it imports from its package or folder."""
        # A package is its file `__init__`, in a folder of its name.
        top, *submodules = module.split(".")
        if file.stem == "__init__":
            submodules.append("__init__")
        root = file.parents[len(submodules)]
        self.roots.add(root)

        # Which imports belong to it?
        is_standalone = not submodules and root.name not in INSTALL_FOLDERS
        prefixes: tuple[str, ...] = (f"{top}.",)
        if top == "foretune":
            prefixes = HASHED_PREFIXES
        elif is_standalone:
            prefixes = ("",)  # any module in the folder

        pending = [(module, file)]
        while pending:
            name, path = pending.pop()
            if path in self.code:
                continue
            tree, self.code[path] = _read(path)
            package = name if path.stem == "__init__" else name.rpartition(".")[0]
            for imported, imported_file in _imported_modules(tree, package, root):
                if f"{imported}.".startswith(prefixes):
                    pending.append((imported, imported_file))


def source_file(module: ModuleType | None) -> Path | None:
    """Return the file with a module's source; None if it is in an archive, or compiled."""
    path = Path(getattr(module, "__file__", None) or "")
    return path if path.suffix == ".py" and path.is_file() else None


def module_code(module: ModuleType) -> str:
    """Return the code of a user's module and of the modules that it imports; else its name."""
    file = source_file(module)
    if file is None or not is_user_code(module):
        return module.__name__
    return _code_with_imports(module.__name__, file)


def code_of_import(name: str) -> str:
    """Return the code of a user's module that is not imported yet; empty for other modules."""
    top = name.partition(".")[0]
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(top)
        file = Path((spec and spec.origin) or "")
        is_installed = bool(set(INSTALL_FOLDERS) & set(file.parts))
        if file.suffix == ".py" and is_user_module(top) and not is_installed:
            root = file.parents[1] if file.stem == "__init__" else file.parent
            return _code_with_imports(name, _module_file(name, root) or file)
    return ""


def is_user_code(obj: Any) -> bool:
    """Whether the object is user code, not part of an installed package, Python or Foretune."""
    if isinstance(obj, ModuleType):
        return is_user_module(obj.__name__)
    if isinstance(obj, FunctionType):
        # A decorator may have changed `__module__`, but not the globals.
        name = obj.__globals__.get("__name__", obj.__module__)
        # Code that was compiled from a text has no module.
        return name in (None, "builtins") or is_user_module(name)
    return is_user_module(obj.__module__)


def _code_with_imports(name: str, file: Path) -> str:
    files = SourceFiles()
    files.add(name, file)
    return files.text


@cache
def _read(path: Path) -> tuple[ast.AST, str]:
    """Return the syntax of a file, and its normalized text."""
    tree = ast.parse(path.read_bytes())
    return tree, repr(normalized_syntax(tree))


def _imported_modules(tree: ast.AST, package: str, root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the modules below ``root`` that a module of ``package`` imports, and their files."""
    # Each import has one or two names that may be modules, the more specific first: a name that is
    # imported from a package may be a module, or be defined in the package.
    imports: list[tuple[str, ...]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(alias.name,) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _imported_from(node, package)
            imports += [(f"{base}.{alias.name}", base) for alias in node.names]

    for names in imports:
        for name in names:
            file = _module_file(name, root)
            if file is not None:
                yield name, file
                break


def _imported_from(node: ast.ImportFrom, package: str) -> str:
    """Return the full name of the module in ``from MODULE import …``, which may be relative."""
    if not node.level:
        return node.module or ""
    # One dot is the package itself, two are the package above, …
    parts = package.split(".")
    above = parts[: len(parts) + 1 - node.level]
    return ".".join(filter(None, [*above, node.module or ""]))


def _module_file(module: str, root: Path) -> Path | None:
    """Return the file of a module below ``root``; None if there is none."""
    base = root.joinpath(*module.split("."))
    for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None
