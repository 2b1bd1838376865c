"""Finds benchmarks in a file or folder: which files have some, by their text, and what is in them.

Only files with benchmarks are imported. A folder is imported as a package, so its files may import
each other by name or relatively.
"""

import ast
import importlib
import importlib.machinery
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from foretune.tune.gate.agent import asv_classes, functions
from foretune.tune.gate.agent.pytest_items import FIXTURES

SKIPPED_FOLDERS = ("__pycache__", "node_modules", "build", "dist")
ASV_PREFIXES = (asv_classes.PREFIX, *asv_classes.OTHER_PREFIXES)


class Found:
    """What discovery found.

    Attributes:
        benchmarks: those of functions and asv, by name.
        test_files: paths of files for pytest.
        left_out: reasons by name of what is no benchmark.
    """

    def __init__(self) -> None:
        self.benchmarks: dict[str, Any] = {}
        self.test_files: list[str] = []
        self.left_out: dict[str, str] = {}


def find_benchmarks(path: str) -> Found:
    """Return the benchmarks of a file, or of all files in a folder."""
    found = Found()
    is_file = os.path.isfile(path)
    folder = os.path.dirname(path) if is_file else path
    package = _package_of(folder)
    for file in [path] if is_file else sorted(_python_files(folder)):
        name = os.path.relpath(file, folder).replace(os.sep, "/")
        try:
            kinds = kinds_in(file)
        except (SyntaxError, UnicodeDecodeError) as e:
            found.left_out[name] = f"it cannot be read: {type(e).__name__}: {e}"
            continue
        if "pytest" in kinds:
            found.test_files.append(file)
        if kinds & {"function", "asv"}:
            _add_module(found, package, name)
    return found


def kinds_in(file: str) -> set[str]:
    """Return the kinds of benchmarks that a file seems to have: function, asv, pytest."""
    with open(file, encoding="utf-8") as stream:
        text = stream.read()
    kinds = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            kinds |= _kind_of_function(node.name, is_method=False)
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                    kinds |= _kind_of_function(member.name, is_method=True)
            if any(base for base in node.bases):  # its methods may be inherited
                kinds |= {"asv"} if _names_asv(text) else set()
    if "test" in kinds:
        kinds.remove("test")
        # The fixture may be an argument, or that of another fixture; a marker names it as well.
        if any(name in text for name in FIXTURES):
            kinds.add("pytest")
    return kinds


def _kind_of_function(name: str, is_method: bool) -> set[str]:
    if name.startswith(functions.PREFIX) and not is_method:
        return {"function"}
    if name.startswith(ASV_PREFIXES):
        return {"asv"}
    return {"test"} if name.startswith("test") else set()


def _names_asv(text: str) -> bool:
    return any(f"def {prefix}" in text for prefix in ASV_PREFIXES)


def _python_files(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS and not f.startswith(".")]
        yield from (os.path.join(parent, file) for file in files if file.endswith(".py"))


def _package_of(folder: str) -> str:
    """Make a folder importable as a package; return the package's name."""
    folder = os.path.abspath(folder)
    name = os.path.basename(folder).replace("-", "_").replace(".", "_")
    if not name.isidentifier():
        name = "benchmarks"

    # The package must not hide an installed one, such as a project named as its folder.
    if name in sys.modules or importlib.machinery.PathFinder.find_spec(name) is not None:
        name = f"foretune_gate_{name}"
    package = types.ModuleType(name)
    package.__path__ = [folder]
    init = os.path.join(folder, "__init__.py")
    if os.path.isfile(init):
        loader = importlib.machinery.SourceFileLoader(name, init)
        package.__file__ = init
        package.__loader__ = loader
        sys.modules[name] = package
        loader.exec_module(package)
    sys.modules[name] = package

    # Files that import each other by name, as scripts do.
    if folder not in sys.path:
        sys.path.append(folder)
    return name


def _add_module(found: Found, package: str, name: str) -> None:
    dotted = name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    try:
        module = importlib.import_module(f"{package}.{dotted}")
    except Exception as e:
        found.left_out[name] = f"it cannot be imported: {type(e).__name__}: {e}"
        return
    for find in (functions.find_functions, asv_classes.find_asv):
        for member, benchmark in find(module):
            if isinstance(benchmark, str):
                found.left_out[f"{name}::{member}"] = benchmark
            else:
                found.benchmarks[f"{name}::{member}"] = benchmark
