"""Hashes the code of a kernel or a family: rows measured with other code do not apply to it.

The hash covers the modules of the class and of its bases, and the modules that they import: in
Foretune those under `HASHED_PREFIXES`, in another package its own, and for a single file the files
and packages in its folder. Other packages are identified by their versions, which every row
records. Comments, docstrings and layout do not change the hash, nor does the version of Python.
"""

import ast
import contextlib
import hashlib
import importlib.util
import inspect
import linecache
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from foretune.support.captures import INSTALL_FOLDERS, is_user_module, nested_code_objects

HASHED_PREFIXES = ("foretune.collect.", "foretune.features.families.")
_FORETUNE_ROOT = Path(__file__).parents[2]


@cache
def code_hash(kind: type, base: type) -> str:
    """Hash the code of a class and of those bases that derive from ``base``, as 16 hex digits.

    If the class has no file, as in an interpreter, its methods are hashed.
    """
    text = "\n".join(sorted(_class_code(kind, base)[0].values())) or _methods_code(kind)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _methods_code(kind: type) -> str:
    """Return the code of a class without a file: that of its methods."""
    methods = [getattr(v, "__func__", v) for v in vars(kind).values()]
    code = sorted(function_code(m) for m in methods if isinstance(m, FunctionType))
    return "\n".join([kind.__qualname__, *code])


def uninstalled_sources(kind: type, base: type) -> list[Path]:
    """Return the uninstalled files and folders that another machine needs to import a class."""
    files, roots = _class_code(kind, base)
    uninstalled = {
        root for root in roots if root.name not in INSTALL_FOLDERS and root != _FORETUNE_ROOT
    }
    inside = ((root, file) for root in uninstalled for file in files if file.is_relative_to(root))
    return sorted({root / file.relative_to(root).parts[0] for root, file in inside})


def _class_code(kind: type, base: type) -> tuple[dict[Path, str], set[Path]]:
    """Return the normalized code of each file of a class, and the roots of its modules."""
    found: dict[Path, str] = {}
    roots = set()
    for module in {c.__module__ for c in kind.__mro__ if issubclass(c, base)}:
        file = _source_file(sys.modules.get(module))
        if file and module.rpartition(".")[0] != "foretune":  # the base class itself
            roots.add(_collect_module(module, file, found))
    return found, roots


def _source_file(module: ModuleType | None) -> Path | None:
    """Return the file with a module's source; None if it is in an archive, or compiled."""
    path = Path(getattr(module, "__file__", None) or "")
    return path if path.suffix == ".py" and path.is_file() else None


@cache
def packages_hash(*packages: ModuleType) -> str:
    """Hash all Python files of packages and their subpackages."""
    digest = hashlib.sha256()
    for package in packages:
        for root in package.__path__:
            for path in sorted(Path(root).rglob("*.py")):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _collect_module(module: str, file: Path, found: dict[Path, str]) -> Path:
    """Add the code of a module and of its imports to ``found``; return its root folder."""
    top, *submodules = module.split(".") + ["__init__"] * (file.stem == "__init__")
    root = file.parents[len(submodules)]
    is_standalone = not submodules and root.name not in INSTALL_FOLDERS
    prefixes = HASHED_PREFIXES if top == "foretune" else ("" if is_standalone else f"{top}.",)
    pending = [(module, file)]
    while pending:
        name, path = pending.pop()
        if path not in found:
            tree, found[path] = _read(path)
            package = name if path.stem == "__init__" else name.rpartition(".")[0]
            imported = _imported_modules(tree, package, root)
            pending += [(n, p) for n, p in imported if f"{n}.".startswith(prefixes)]
    return root


@cache
def _read(path: Path) -> tuple[ast.AST, str]:
    tree = ast.parse(path.read_bytes())
    return tree, repr(_normalized_syntax(tree))


def _imported_modules(tree: ast.AST, package: str, root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the modules below ``root`` that a module of ``package`` imports, and their files."""
    names: list[tuple[str, ...]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(alias.name,) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".") if node.level else []
            parts = [*above[: len(above) + 1 - node.level], node.module or ""]
            base = ".".join(filter(None, parts))
            names += [(f"{base}.{alias.name}", base) for alias in node.names]
    for candidates in names:  # a name imported from a package may be a module
        files = ((name, _module_file(name, root)) for name in candidates)
        yield from [(name, path) for name, path in files if path][:1]


def _module_file(module: str, root: Path) -> Path | None:
    base = root.joinpath(*module.split("."))
    candidates = (base.with_name(f"{base.name}.py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def _normalized_syntax(node: Any) -> Any:
    """Return syntax as lists, without positions, docstrings and fields that newer Pythons add."""
    if isinstance(node, ast.AST):
        fields = ((name, _normalized_syntax(value)) for name, value in ast.iter_fields(node))
        return [type(node).__name__, *(f for f in fields if f[1] not in (None, []))]
    if isinstance(node, list):
        return [_normalized_syntax(each) for each in node if not _is_docstring(each)]
    return node


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def function_code(function: Any) -> str:
    """Return the normalized syntax of a function; its bytecode if it has no file.

    Of a decorated function, this is the code of the decorator's wrapper.
    """
    code: CodeType = function.__code__
    tree = syntax_of(function)
    if tree is not None:
        tree.decorator_list = [  # type: ignore[attr-defined]
            d for d in getattr(tree, "decorator_list", []) if not _lists_knobs(d)
        ]
        return repr(_normalized_syntax(tree))
    return repr(
        [
            (part.co_code, part.co_names, list(map(_constant_text, part.co_consts)))
            for part in nested_code_objects(code)
        ]
    )


def syntax_of(function: Any) -> ast.stmt | None:
    """Return the syntax of a function; None for a lambda, and if it has no file.

    Of a decorated function, this is the syntax of the decorator's wrapper.
    """
    code: CodeType = function.__code__
    if code.co_name == "<lambda>":  # its line may hold other code
        return None
    with contextlib.suppress(OSError, TypeError, SyntaxError, ValueError):
        # Of the code object: `inspect` would replace a wrapper by what it wraps.
        text = textwrap.dedent(inspect.getsource(code))
        (tree,) = ast.parse(text).body
        return tree
    return None


def syntax_of_lambda(function: Any) -> ast.Lambda | None:
    """Return the syntax of a lambda; None if it has no file, or is none."""
    code: CodeType = function.__code__
    if code.co_name != "<lambda>":
        return None
    lines = linecache.getlines(code.co_filename)
    with contextlib.suppress(SyntaxError, ValueError):
        found = [
            node
            for node in ast.walk(ast.parse("".join(lines)))
            if isinstance(node, ast.Lambda) and _holds_code(node.body, code)
        ]
        # A lambda around it does not hold its code, but its body holds these places, too.
        return min(found, key=_length, default=None)
    return None


def _holds_code(node: ast.expr, code: CodeType) -> bool:
    """Whether all code of a function comes from an expression."""
    start = (node.lineno, node.col_offset)
    end = (node.end_lineno or 0, node.end_col_offset or 0)
    places = [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if None not in (line, end_line, column, end_column) and (column, end_column) != (0, 0)
    ]
    return bool(places) and all(start <= first and last <= end for first, last in places)


def _length(node: ast.Lambda) -> tuple[int, int]:
    lines = (node.end_lineno or 0) - node.lineno
    return lines, (node.end_col_offset or 0) - node.col_offset


def _constant_text(constant: Any) -> str:
    """Return text of a constant in code; that of a set must not depend on the process."""
    if isinstance(constant, CodeType):
        return "code"
    if isinstance(constant, frozenset):
        return f"frozenset {sorted(map(_constant_text, constant))}"
    if isinstance(constant, tuple):
        return f"({', '.join(map(_constant_text, constant))})"
    return repr(constant)


def _lists_knobs(decorator: ast.expr) -> bool:
    """Whether a decorator only lists what may be tuned, which is not code."""
    name = ast.unparse(getattr(decorator, "func", decorator))
    return name.endswith(("tunable", "autotune"))


def module_code(module: ModuleType) -> str:
    """Return the code of a user's module and of the modules that it imports; else its name."""
    file = _source_file(module)
    if file is None or not is_user_code(module):
        return module.__name__
    return _code_in_file(module.__name__, file)


def code_of_import(name: str) -> str:
    """Return the code of a user's module that is not imported yet; empty for other modules."""
    top = name.partition(".")[0]
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(top)
        file = Path((spec and spec.origin) or "")
        is_user = is_user_module(top) and not set(INSTALL_FOLDERS) & set(file.parts)
        if is_user and file.suffix == ".py":
            root = file.parents[1] if file.stem == "__init__" else file.parent
            return _code_in_file(name, _module_file(name, root) or file)
    return ""


def _code_in_file(name: str, file: Path) -> str:
    found: dict[Path, str] = {}
    _collect_module(name, file, found)
    return "\n".join(sorted(found.values()))


def is_user_code(obj: Any) -> bool:
    """Whether the object is user code, not part of an installed package, Python or Foretune."""
    if isinstance(obj, ModuleType):
        return is_user_module(obj.__name__)
    if isinstance(obj, FunctionType):  # a decorator may have changed what `__module__` says
        name = obj.__globals__.get("__name__", obj.__module__)
        return name in (None, "builtins") or is_user_module(name)  # code of a text has no module
    return is_user_module(obj.__module__)
