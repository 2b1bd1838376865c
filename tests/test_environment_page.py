"""Tests that docs/environment.md lists the variables that the product reads, and no others."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "environment.md"
FOLDERS = ("collect", "datasets", "features", "models", "plan", "search", "tune", "src/foretune")
OURS = re.compile(r"FORETUNE_[A-Z_]+")
READERS = ("get", "pop", "setdefault")


def trees() -> Iterator[ast.Module]:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            yield ast.parse(path.read_text(encoding="utf-8"))


def texts_in(tree: ast.AST) -> set[str]:
    """Return the text constants of a module."""
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def is_environ(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def reads_environ(function: ast.AST) -> bool:
    is_reader = isinstance(function, ast.Attribute) and function.attr in READERS
    return is_reader and is_environ(function.value)


def variables_in(tree: ast.AST) -> Iterator[str]:
    """Yield the variables that a module names where it reads or sets the environment."""
    for node in ast.walk(tree):
        named: ast.AST | None = None
        if isinstance(node, ast.Subscript) and is_environ(node.value):
            named = node.slice
        elif isinstance(node, ast.Call) and reads_environ(node.func):
            named = node.args[0]
        if isinstance(named, ast.Constant):
            yield str(named.value)


def listed() -> set[str]:
    """Return the variables in the first column of the page's tables."""
    rows = re.findall(r"^\| (`[^|]+`) \|", PAGE.read_text(encoding="utf-8"), re.M)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_page_lists_every_variable():
    used = set()
    for tree in trees():
        used |= {*variables_in(tree)}
        used |= {text for text in texts_in(tree) if OURS.fullmatch(text)}
    assert "FORETUNE_STORE" in used
    assert sorted(used - listed()) == []


def test_page_lists_no_other_variable():
    texts = set().union(*map(texts_in, trees()))
    assert sorted(listed() - texts) == []
