"""Hashes the code of a kernel or a family: rows measured with other code do not apply to it.

The hash covers the modules of the class and of its bases, and the modules that they import: in
Foretune those under `HASHED_PREFIXES`, in another package its own, and for a single file the files
and packages in its folder. Other packages are identified by their versions, which every row
records. Comments, docstrings and layout do not change the hash, nor does the version of Python.
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
"""Folders whose files are unrelated to each other."""
_FORETUNE_ROOT = Path(__file__).parents[2]
_PLAIN = int | float | str | bytes | bool | None


@cache
def code_hash(kind: type, base: type) -> str:
    """Hash the code of a class and of those bases that derive from ``base``, as 16 hex digits.

    If the class has no file, as in an interpreter, its methods are hashed.
    """
    text = "\n".join(sorted(_class_code(kind, base)[0].values())) or source_hash_of_function(kind)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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


def source_hash_of_function(function: Any) -> str:
    """Hash the code of a function and of the code it refers to, as 16 hexadecimal digits.

    The hash covers the user's functions, classes and modules that it names, and the plain values it
    captures, also in the object of a method. Other changes to its script do not matter.
    """
    found: dict[int, str] = {}
    _collect_object(function, found)
    text = "\n".join(sorted(found.values()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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


def _collect_object(obj: Any, found: dict[int, str]) -> None:
    """Add the code of a referenced object and, recursively, of what it references."""
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
    elif isinstance(obj, _PLAIN):
        references, text = [], repr(obj)
    else:
        plain = inspect.unwrap(getattr(obj, "py_func", getattr(obj, "__func__", obj)))
        if inspect.isfunction(plain) and _is_user_code(plain):
            references, text = _captured_values(plain), function_code(plain)
        else:
            references = [] if inspect.isroutine(plain) else [type(plain)]
            text = getattr(plain, "__qualname__", "object")
        text += _plain_state(obj)
    found[id(obj)] = text
    for each in references:
        _collect_object(each, found)


def function_code(function: Any) -> str:
    """Return the normalized syntax of a function; its bytecode if it has no file."""
    if function.__name__ != "<lambda>":  # its line may hold other code
        with contextlib.suppress(OSError, TypeError, SyntaxError):
            text = textwrap.dedent(inspect.getsource(function))
            (tree,) = ast.parse(text).body
            tree.decorator_list = [  # type: ignore[attr-defined]
                d for d in getattr(tree, "decorator_list", []) if not _lists_knobs(d)
            ]
            return repr(_normalized_syntax(tree))
    code = [
        (c.co_code, c.co_names, [k for k in c.co_consts if not isinstance(k, CodeType)])
        for c in _nested_code_objects(function.__code__)
    ]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return repr([*code, *(value for value in defaults if isinstance(value, _PLAIN))])


def _lists_knobs(decorator: ast.expr) -> bool:
    """Whether a decorator only lists what may be tuned, which is not code."""
    name = ast.unparse(getattr(decorator, "func", decorator))
    return name.endswith(("tunable", "autotune"))


def _captured_values(function: Any) -> list[Any]:
    """Return the globals and closure values that a function uses."""
    names = {name for code in _nested_code_objects(function.__code__) for name in code.co_names}
    found = [function.__globals__[name] for name in sorted(names) if name in function.__globals__]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # empty
            found.append(cell.cell_contents)
    return found


def _plain_state(obj: Any) -> str:
    """Return the plain values that an object of the user's, or a method's object, holds."""
    owner = getattr(obj, "__self__", obj)
    if inspect.isroutine(owner) or not _is_user_code(type(owner)):
        return ""
    held = sorted(getattr(owner, "__dict__", {}).items())
    return "".join(f" {name}={value!r}" for name, value in held if isinstance(value, _PLAIN))


def _nested_code_objects(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_code_objects(constant)


def _module_code(module: ModuleType) -> str:
    file = _source_file(module)
    if file is None or not _is_user_code(module):
        return module.__name__
    found: dict[Path, str] = {}
    _collect_module(module.__name__, file, found)
    return "\n".join(sorted(found.values()))


def _is_user_code(obj: Any) -> bool:
    """Whether the object is user code, not part of an installed package, Python or Foretune."""
    name = obj.__name__ if isinstance(obj, ModuleType) else obj.__module__
    top = (name or "builtins").partition(".")[0]
    if top in sys.stdlib_module_names or top == "foretune":
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return not set(INSTALL_FOLDERS) & set(Path(file).parts)
