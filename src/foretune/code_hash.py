"""What identifies the code of a kernel or a family: rows measured with other code are not of it.

The modules of the class and of its bases count, and what they import, anywhere in them, as far as
it belongs to the same work:

- of Foretune, `OURS`: what computes, generates and runs kernels. The nouns only describe kernels,
  and how a time is taken (`foretune.collect.benchmark`) is not part of what is timed;
- of another package, its modules;
- of a file by itself, the files and packages in the same folder.

Other packages are known by their versions, which every row notes. Comments, docstrings and layout
do not count, and every version of Python finds the same.
"""

import ast
import contextlib
import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

HASHED_PREFIXES = ("foretune.collect.", "foretune.features.families.")
INSTALL_FOLDERS = ("site-packages", "dist-packages")
"""Folders in which files that lie side by side have nothing to do with each other."""
_FORETUNE_ROOT = Path(__file__).parents[1]
"""Where Foretune itself is found."""


@cache
def code_hash(kind: type, base: type) -> str:
    """Return sixteen hexadecimal digits that identify the code of a class.

    Args:
        kind: the class. Typed into an interpreter, without a file, its methods count.
        base: what it derives from: bases that do not derive from it do not count.
    """
    text = "\n".join(sorted(_class_code(kind, base)[0].values())) or source_hash_of_function(kind)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def uninstalled_sources(kind: type, base: type) -> list[Path]:
    """Return the files and folders that hold the code of a class and are not installed.

    Another machine needs them to import it.
    """
    files, roots = _class_code(kind, base)
    uninstalled = {
        root for root in roots if root.name not in INSTALL_FOLDERS and root != _FORETUNE_ROOT
    }
    inside = ((root, file) for root in uninstalled for file in files if file.is_relative_to(root))
    return sorted({root / file.relative_to(root).parts[0] for root, file in inside})


def _class_code(kind: type, base: type) -> tuple[dict[Path, str], set[Path]]:
    """Return the text that counts of each file of a class, and where its modules are found."""
    found: dict[Path, str] = {}
    roots = set()
    for module in {c.__module__ for c in kind.__mro__ if issubclass(c, base)}:
        file = getattr(sys.modules.get(module), "__file__", None)
        if file and module.rpartition(".")[0] != "foretune":  # that is the noun itself
            roots.add(_collect_module(module, Path(file), found))
    return found, roots


def source_hash_of_function(function: Any) -> str:
    """Return sixteen hexadecimal digits that identify the code of a function, and of what it calls.

    Its own code counts, that of functions and classes of yours that it names, modules of yours, and
    the plain values it finds around it. So a script may change around a function that stays.

    Args:
        function: or a class, or an object that is called.
    """
    found: dict[int, str] = {}
    _collect_object(function, found)
    text = "\n".join(sorted(found.values()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def packages_hash(*packages: ModuleType) -> str:
    """Return what identifies the files of packages: what they taught is of them.

    Args:
        packages: each with all that lies below it.
    """
    digest = hashlib.sha256()
    for package in packages:
        for root in package.__path__:
            for path in sorted(Path(root).rglob("*.py")):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _collect_module(module: str, file: Path, found: dict[Path, str]) -> Path:
    """Add the code of a module, and of what it imports, to ``found``; return where it lies."""
    top, *submodules = module.split(".") + ["__init__"] * (file.stem == "__init__")
    root = file.parents[len(submodules)]
    is_standalone = not submodules and root.name not in INSTALL_FOLDERS
    prefixes = (
        HASHED_PREFIXES if top == "foretune" else (f"{top}.", "") if is_standalone else (f"{top}.",)
    )
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
    """Return the syntax of a file, and as text what counts of it."""
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
    for candidates in names:  # what is imported from a package may be a module of it
        files = ((name, _module_file(name, root)) for name in candidates)
        yield from [(name, path) for name, path in files if path][:1]


def _module_file(module: str, root: Path) -> Path | None:
    base = root.joinpath(*module.split("."))
    candidates = (base.with_name(f"{base.name}.py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def _normalized_syntax(node: Any) -> Any:
    """Return syntax as lists, without positions, docstrings, and fields new Pythons have empty."""
    if isinstance(node, ast.AST):
        fields = ((name, _normalized_syntax(value)) for name, value in ast.iter_fields(node))
        return [type(node).__name__, *(f for f in fields if f[1] not in (None, []))]
    if isinstance(node, list):
        return [_normalized_syntax(each) for each in node if not _is_docstring(each)]
    return node


def _is_docstring(node: Any) -> bool:
    """Whether a statement is nothing but a text: a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _collect_object(obj: Any, found: dict[int, str]) -> None:
    """Add the code of one thing that a function names, and of what that names in turn."""
    if id(obj) in found:
        return
    found[id(obj)] = ""
    if isinstance(obj, functools.partial):
        references = [obj.func, *obj.args, *obj.keywords.values()]
        text = "partial"
    elif isinstance(obj, ModuleType):
        references, text = [], _module_code(obj)
    elif isinstance(obj, type):
        references = [getattr(v, "__func__", v) for v in vars(obj).values() if _is_user_code(obj)]
        text = obj.__qualname__
    elif isinstance(obj, int | float | str | bytes | bool | None):
        references, text = [], repr(obj)
    else:
        plain = inspect.unwrap(getattr(obj, "py_func", getattr(obj, "__func__", obj)))
        if inspect.isfunction(plain) and _is_user_code(plain):
            references, text = _captured_values(plain), _function_code(plain)
        else:
            references = [] if inspect.isroutine(plain) else [type(plain)]
            text = getattr(plain, "__qualname__", "object")
    found[id(obj)] = text
    for each in references:
        _collect_object(each, found)


def _function_code(function: Any) -> str:
    """Return what counts of one function: its syntax, or where there is no file, its bytecode."""
    if function.__name__ != "<lambda>":  # its line may hold anything else
        with contextlib.suppress(OSError, TypeError, SyntaxError):
            text = textwrap.dedent(inspect.getsource(function))
            (tree,) = ast.parse(text).body
            tree.decorator_list = [  # type: ignore[attr-defined]
                d for d in getattr(tree, "decorator_list", []) if "tunable" not in ast.unparse(d)
            ]  # its knobs are no code
            return repr(_normalized_syntax(tree))
    return repr([(c.co_code, c.co_names, [k for k in c.co_consts if not isinstance(k, CodeType)])
                 for c in _nested_code_objects(function.__code__)])  # fmt: skip


def _captured_values(function: Any) -> list[Any]:
    """Return what a function finds around it: closed over, in its module, as its defaults."""
    names = {name for code in _nested_code_objects(function.__code__) for name in code.co_names}
    found = [function.__globals__[name] for name in sorted(names) if name in function.__globals__]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # empty
            found.append(cell.cell_contents)
    return found


def _nested_code_objects(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_code_objects(constant)


def _module_code(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py") or not _is_user_code(module):
        return module.__name__
    found: dict[Path, str] = {}
    _collect_module(module.__name__, Path(file), found)
    return "\n".join(sorted(found.values()))


def _is_user_code(obj: Any) -> bool:
    """Whether somebody's own code defines it: no installed package, not Python, not Foretune."""
    name = obj.__name__ if isinstance(obj, ModuleType) else obj.__module__
    top = (name or "builtins").partition(".")[0]
    if top in sys.stdlib_module_names or top == "foretune":
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return not set(INSTALL_FOLDERS) & set(Path(file).parts)
