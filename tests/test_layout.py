"""Tests the layout: folders at the root are packages of foretune, and imports point one way."""

import ast
import importlib
import os
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ["datasets", "collect", "features", "models", "search", "tune", "plan"]
"""Each may import those before it and the root modules, none after it; the CLI imports all."""

LAZY_PACKAGES = [
    "foretune",
    "foretune.testing",
    *(f"foretune.{name}" for name in PACKAGES if name != "features"),
]
"""Packages whose public names are imported on first use."""

needs_links = pytest.mark.skipif(
    (ROOT / "PKG-INFO").exists(),
    reason="needs a checkout: a source distribution has the folders themselves",
)


@needs_links
@pytest.mark.parametrize("name", PACKAGES)
def test_links_lead_to_folders_at_root(name):
    link = ROOT / "src" / "foretune" / name
    assert link.is_symlink()
    assert link.resolve() == ROOT / name
    assert (ROOT / name / "__init__.py").exists()


@needs_links
def test_links_are_all_packages():
    links = [path.name for path in (ROOT / "src" / "foretune").iterdir() if path.is_symlink()]
    assert sorted(links) == sorted(PACKAGES)


def test_setup_maps_all_packages():
    """A build without links takes the list of setup.py; one with links does not read it."""
    setup = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    (folders,) = (
        ast.literal_eval(node.value)
        for node in setup.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets) == "FOLDERS"
    )
    assert sorted(folders) == sorted(PACKAGES)


@pytest.mark.parametrize("name", ["datasets", "models"])
def test_package_data_covers_shipped_files(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"][f"foretune.{name}"]
    package = ROOT / "src" / "foretune" / name
    there = {p for p in (package / "shipped").rglob("*") if p.is_file()}
    assert there
    assert there <= {p for pattern in patterns for p in package.glob(pattern)}


def module_files() -> dict[str, Path]:
    """Return every module of foretune by its name; links are followed."""
    found = {}
    for folder, _, files in os.walk(ROOT / "src" / "foretune", followlinks=True):
        for path in (Path(folder) / file for file in files if file.endswith(".py")):
            parts = path.relative_to(ROOT / "src").with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = module_files()


@pytest.mark.parametrize("name", ["plan", "tune"])
def test_package_data_covers_files_beside_code(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"][f"foretune.{name}"]
    package = ROOT / "src" / "foretune" / name
    kinds = {".csv", ".html", ".css", ".js"}
    there = {p for p in package.rglob("*") if p.suffix in kinds}
    assert there
    assert there <= {p for pattern in patterns for p in package.glob(pattern)}


def imports_of(path: Path) -> set[str]:
    """Return the foretune modules that a file imports: at its top, in functions, for types."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {m if m in MODULES else str(node.module) for m in inner.values()}
    return found & MODULES.keys()


@cache  # not while tests are collected: it takes seconds
def imports() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    return {name: imports_of(path) - {name} for name, path in MODULES.items()}


def part_of(module: str) -> str:
    """Return the second part of a dotted name: the package or root module."""
    return module.removeprefix("foretune").removeprefix(".").split(".")[0]


@pytest.mark.parametrize("name", PACKAGES)
def test_imports_point_one_way(name):
    later = {*PACKAGES[PACKAGES.index(name) + 1 :], "testing", "cli"}
    for module in (m for m in MODULES if part_of(m) == name):
        wrong = {m for m in imports()[module] if part_of(m) in later}
        assert not wrong, f"{module} imports {wrong}"


def test_imports_of_root_modules_name_no_package():
    for module in MODULES:
        if part_of(module) in {*PACKAGES, "testing", "cli", "", "__main__"}:
            continue  # the last two name every home, and are the command
        wrong = {m for m in imports()[module] if part_of(m) in {*PACKAGES, "testing", "cli"}}
        assert not wrong, f"{module} imports {wrong}"


def test_imports_of_testing_name_no_command():
    for module in (m for m in MODULES if part_of(m) == "testing"):
        assert "cli" not in map(part_of, imports()[module])


def test_imports_name_modules_not_the_root():
    """It names every public home for users: whoever imports it inside waits for all of them."""
    assert [m for m, imported in imports().items() if "foretune" in imported] == []


def test_imports_have_no_cycle():
    assert cycles(imports()) == []


def test_cycles_finds_groups_of_graph():
    """What imports itself through others: a -> b -> c -> a, beside d -> a and e <-> f."""
    graph = {"a": "b", "b": "c", "c": "a", "d": "a", "e": "f", "f": "e", "g": ""}
    found = cycles({name: set(imported) for name, imported in graph.items()})
    assert sorted(map(sorted, found)) == [["a", "b", "c"], ["e", "f"]]


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of nodes that reach each other (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        path.append(node)
        for other in graph[node]:
            if other not in order:
                visit(other)
            if other in path:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == order[node]:
            group = set(path[path.index(node) :])
            del path[path.index(node) :]
            if len(group) > 1:
                found.append(group)

    for node in graph:
        if node not in order:
            visit(node)
    return found


@pytest.mark.parametrize("name", PACKAGES)
def test_imports_name_foretune_not_root_folders(name):
    for path in (p for m, p in MODULES.items() if part_of(m) == name):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        roots = {
            alias.name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        roots |= {
            (node.module or "").split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
        }
        assert not roots & set(PACKAGES), f"{path} imports a root folder instead of foretune.…"


def names_for_type_checkers(init: Path) -> dict[str, str]:
    """Return what an ``__init__.py`` imports under ``if TYPE_CHECKING``: name -> module."""
    checked_blocks = [
        node
        for node in ast.parse(init.read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    module_of = {}
    for block in checked_blocks:
        for line in block.body:
            assert isinstance(line, ast.ImportFrom)
            for alias in line.names:
                qualified = f"{line.module}.{alias.name}"
                module_of[alias.name] = qualified if qualified in MODULES else str(line.module)
    return module_of


@pytest.mark.parametrize("name", LAZY_PACKAGES)
def test_lazy_names_are_those_of_type_checkers(name):
    package = importlib.import_module(name)
    assert names_for_type_checkers(MODULES[name]) == package._MODULE_OF


def test_names_for_type_checkers_tells_names_from_modules(tmp_path):
    init = tmp_path / "__init__.py"
    init.write_text(
        "if TYPE_CHECKING:\n"
        "    from foretune import plot as plot\n"
        "    from foretune.space import SearchSpace\n"
        "from foretune.version import __version__\n"
    )
    assert names_for_type_checkers(init) == {
        "plot": "foretune.plot",
        "SearchSpace": "foretune.space",
    }


@pytest.mark.parametrize("name", LAZY_PACKAGES)
def test_public_names_can_be_imported(name):
    package = importlib.import_module(name)
    assert set(package.__all__) - {"__version__"} == set(dir(package))
    for public in package.__all__:
        # Optuna warns; the loop is to come; a module that is meant
        if public not in ("SurrogateSampler", "run_search", "plot"):
            assert not isinstance(getattr(package, public), ModuleType), "a module hides it"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        package.nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import foretune", set()),
        ("import foretune; foretune.autotune; foretune.Store", set()),
        ("import foretune.tune.triton.autotuner", {"triton"}),
    ],
)
def test_import_is_light(code, allowed):
    if allowed:
        pytest.importorskip("triton")
    code = f"import sys; {code}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    heavy = {"torch", "triton", "mlflow", "optuna", "xgboost", "sklearn", "pandas", "numba", "ray"}
    assert not loaded & (heavy - allowed)


def test_help_is_light():
    code = (
        "import sys; from foretune.cli import main; main(['campaign', '--help']);"
        "print(*sys.modules, file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(run.stderr.split()) & {"torch", "triton", "mlflow", "optuna", "xgboost", "numba"}
