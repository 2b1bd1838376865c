"""The layout: folders at the root are sub-packages of foretune, and imports point one way."""

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ["datasets", "collect", "features", "models", "search", "tune", "plan"]
"""Each may import those before it and the root modules, none after it; the CLI imports all."""


@pytest.mark.parametrize("name", PACKAGES)
def test_every_folder_is_linked_into_the_package(name):
    link = ROOT / "src" / "foretune" / name
    assert link.is_symlink(), "without links (core.symlinks=false) a wheel would lack packages"
    assert link.resolve() == ROOT / name
    assert (ROOT / name / "__init__.py").exists()


@pytest.mark.parametrize("name", ["datasets", "models"])
def test_what_is_shipped_lands_in_a_wheel(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"][f"foretune.{name}"]
    there = {p for p in (ROOT / name / "shipped").rglob("*") if p.is_file()}
    assert there
    assert there <= {p for pattern in patterns for p in (ROOT / name).glob(pattern)}


@pytest.mark.parametrize("name", ["plan", "tune"])
def test_what_lies_beside_the_code_lands_in_a_wheel(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"][f"foretune.{name}"]
    kinds = {".csv", ".html", ".css", ".js"}
    there = {p for p in (ROOT / name).rglob("*") if p.suffix in kinds}
    assert there
    assert there <= {p for pattern in patterns for p in (ROOT / name).glob(pattern)}


def imports_of(path: Path) -> set[str]:
    """Return the foretune modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found.add(node.module or "")
    return {name for name in found if name.split(".")[0] == "foretune"}


def part_of(module: str) -> str:
    """Return the second part of a dotted name: the package or root module."""
    return module.removeprefix("foretune").removeprefix(".").split(".")[0]


@pytest.mark.parametrize("name", PACKAGES)
def test_imports_point_one_way(name):
    later = {*PACKAGES[PACKAGES.index(name) + 1 :], "cli"}
    for path in (ROOT / name).rglob("*.py"):
        for module in imports_of(path):
            part = part_of(module)
            assert part not in later, f"{path.relative_to(ROOT)} imports {module}"


def test_nouns_import_no_package():
    for path in (ROOT / "src" / "foretune").glob("*.py"):
        if path.name in ("__init__.py", "__main__.py"):
            continue  # names every home, and imports none before it is asked to; is the command
        for module in imports_of(path):
            assert module.removeprefix("foretune").lstrip(".").split(".")[0] not in {
                *PACKAGES,
                "cli",
            }, f"{path} imports {module}"


@pytest.mark.parametrize("name", PACKAGES)
def test_no_top_level_import(name):
    for path in (ROOT / name).rglob("*.py"):
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


@pytest.mark.parametrize("name", ["", *PACKAGES])
def test_every_public_name_can_be_imported(name):
    package = importlib.import_module(f"foretune.{name}".rstrip("."))
    assert set(package.__all__) - {"__version__"} == set(dir(package))
    for public in package.__all__:
        if public != "SurrogateSampler":  # a subclass of what Optuna calls experimental
            assert not isinstance(getattr(package, public), ModuleType), "a module hides it"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        package.nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import foretune", set()),
        ("import foretune; foretune.autotune; foretune.Store; foretune.listen", set()),
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
