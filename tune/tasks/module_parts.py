"""Running a part of a Python file: the statements that some names need, with other constants.

A task's file may contain both the reference and the candidate. The reference's process then runs
only what the reference needs, so that the candidate's statements cannot change it. Constants at the
top of a file are the sizes of its inputs: a problem replaces them.
"""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from foretune.tune.tasks.task import TaskError
from foretune.values import FrozenParameters, Value


class ParsedModule:
    """A Python file that was parsed and not run.

    Raises TaskError if the file cannot be read or is no Python.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            self._tree = ast.parse(file.read_bytes(), filename=str(file))
        except (OSError, SyntaxError, ValueError) as e:
            raise TaskError(f"{file} cannot be read as Python: {e}") from e

    @property
    def classes(self) -> list[str]:
        """Names of the classes at the top."""
        return [s.name for s in self._tree.body if isinstance(s, ast.ClassDef)]

    @property
    def functions(self) -> list[str]:
        """Names of the functions at the top."""
        return [s.name for s in self._tree.body if isinstance(s, ast.FunctionDef)]

    @property
    def names(self) -> set[str]:
        """All names that are defined at the top: a function may be assigned, or imported."""
        return {name for statement in self._tree.body for name in _defined_names(statement)}

    def parameters(self, function: str) -> list[str]:
        """Return the names of a function's parameters; none if there is no such function."""
        for statement in self._tree.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == function:
                arguments = statement.args
                every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                return [argument.arg for argument in every]
        return []

    def is_decorated(self, function: str) -> bool:
        """Whether a function at the top has a decorator, or the name is assigned a value."""
        for statement in self._tree.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == function:
                return bool(statement.decorator_list)
            if _assigned_name(statement) == function:
                return True
        return False

    def constant(self, name: str) -> Any:
        """Return the value of a top-level constant, which is written as a literal; else None."""
        for statement in self._tree.body:
            if _assigned_name(statement) == name:
                try:
                    return ast.literal_eval(statement.value)  # type: ignore[attr-defined]
                except ValueError:
                    return None
        return None

    def sizes(self, names: Iterable[str]) -> dict[str, Value]:
        """Return the plain constants that some functions read, in the order of the file."""
        sizes: dict[str, Value] = {}
        for statement in self.statements(names):
            name = _assigned_name(statement)
            value = getattr(statement, "value", None)
            if name and isinstance(value, ast.Constant) and isinstance(value.value, Value):
                sizes[name] = value.value
        return sizes

    def statements(self, names: Iterable[str]) -> list[ast.stmt]:
        """Return the statements that define some names, and all that those need, in order."""
        needed = set(names)
        kept: set[int] = set()
        grows = True
        while grows:
            grows = False
            for number, statement in enumerate(self._tree.body):
                if number in kept or not _defines_any(statement, needed):
                    continue
                kept.add(number)
                needed |= _read_names(statement)
                grows = True
        return [s for number, s in enumerate(self._tree.body) if number in kept]

    def redefined(self, names: Iterable[str]) -> list[str]:
        """Return those names that several statements define, among all that ``names`` need.

        The same import may be repeated.
        """
        needed = set(names)
        by_name: dict[str, set[str]] = {}
        for statement in self.statements(names):
            needed |= _read_names(statement)
        for number, statement in enumerate(self._tree.body):
            is_import = isinstance(statement, ast.Import | ast.ImportFrom)
            definition = ast.dump(statement) if is_import else str(number)
            for name in _defined_names(statement):
                by_name.setdefault(name, set()).add(definition)
        return sorted(name for name in needed if len(by_name.get(name, ())) > 1)

    @property
    def imported(self) -> set[str]:
        """Names of all modules that the file imports anywhere, without their parts."""
        names = set()
        for tree in self._tree.body:
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names.add(node.module)
        return {name.partition(".")[0] for name in names}

    def all_statements(self) -> list[ast.stmt]:
        """Return the statements of the whole file."""
        return list(self._tree.body)


def modules_beside(files: Iterable[Path]) -> set[Path]:
    """Return files, and the modules and packages in their folders that they import, and so on."""
    found: set[Path] = set()
    waiting = list(files)
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        try:
            imported = ParsedModule(file).imported
        except TaskError:  # it is no Python, and fails when it is loaded
            continue
        for name in imported:
            module = file.parent / f"{name}.py"
            waiting += [module] if module.is_file() else []
            waiting += (file.parent / name).rglob("*.py")
    return found


def load_part(
    file: Path, names: tuple[str, ...] | None, constants: Mapping[str, Value]
) -> ModuleType:
    """Run what ``names`` need, or the whole file if None, and return it as a module.

    ``constants`` replace the values of top-level constants of that name.
    """
    return _load_part(file, names, FrozenParameters(constants))


@cache
def _load_part(
    file: Path, names: tuple[str, ...] | None, constants: FrozenParameters
) -> ModuleType:
    parsed = ParsedModule(file)
    statements = parsed.all_statements() if names is None else parsed.statements(names)
    body = [_with_constants(statement, constants) for statement in statements]

    # Other files of the task are found, but never instead of an installed package.
    folder = str(file.parent)
    if folder not in sys.path:
        sys.path.append(folder)

    # A module must be known by its name: dataclasses and pickling look it up.
    part = hashlib.sha256(repr((file, names, sorted(constants.items()))).encode()).hexdigest()[:8]
    module = ModuleType(f"foretune_task_{file.stem}_{part}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module

    # Statements keep their lines, because Triton reads the source of its kernels.
    code = compile(ast.Module(body=body, type_ignores=[]), str(file), "exec")
    exec(code, module.__dict__)
    return module


def _with_constants(statement: ast.stmt, constants: Mapping[str, Value]) -> ast.stmt:
    name = _assigned_name(statement)
    if name not in constants or name is None:
        return statement
    old = statement.value  # type: ignore[attr-defined]
    statement.value = ast.copy_location(ast.Constant(constants[name]), old)  # type: ignore[attr-defined]
    return statement


def _assigned_name(statement: ast.stmt) -> str | None:
    """Return the name that a statement like ``name = value`` assigns."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        (target,) = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target = statement.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


def _defines_any(statement: ast.stmt, names: set[str]) -> bool:
    """Whether a statement defines one of the names, or may define any."""
    if isinstance(statement, ast.ImportFrom):
        if statement.module == "__future__":
            return True
        if any(alias.name == "*" for alias in statement.names):
            return True
    return not names.isdisjoint(_defined_names(statement))


def _defined_names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    if isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def _read_names(statement: ast.stmt) -> set[str]:
    nodes = ast.walk(statement)
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
