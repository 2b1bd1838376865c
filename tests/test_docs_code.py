"""Tests that code in pages runs as a reader runs it, and that commands parse."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from toy_kernel import DEVICE
from typer.core import TyperCommand

import foretune
from foretune.cli.app import app
from foretune.collect import InProcessRunner, Timing
from foretune.tune import judge as judging
from foretune.tune import tuner
from foretune.tune.functions import kernel_tuner, tunable, tuning

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = ("your-own-kernel.md",)  # its blocks are files of one folder: tests/testing
UNFIT = {"add.py": "triton"}
"""Files that need an optional package."""


def blocks(page, *languages):
    """Return the texts of the page's code blocks in these languages."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
    return [text for language, text in found if language in languages]


PYTHON = [(page.name, i, text) for page in PAGES for i, text in enumerate(blocks(page, "python"))]
FILES = [
    (match[1], text)
    for name, _, text in PYTHON
    if name not in ELSEWHERE and (match := re.match(r"# (\w+\.py)\n", text))
]


@pytest.fixture
def _quick(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuner, "MIN_VERIFY_S", 0.05)
    monkeypatch.setattr(judging, "MAX_ROUNDS", judging.MIN_ROUNDS)
    quick = Timing(
        max_seconds=0.02, warmup_s=0.001
    )  # and in this process: isolation has its own tests
    monkeypatch.setattr(tuning, "_runner", lambda device, *_: InProcessRunner(device, quick))
    for module in (tuning, tunable, kernel_tuner):
        monkeypatch.setattr(module, "local_device", lambda name, measure=True: DEVICE)
    tunable._device.cache_clear()


@pytest.mark.parametrize(("page", "i", "text"), PYTHON, ids=[f"{p}-{i}" for p, i, _ in PYTHON])
def test_python_block_compiles_and_names_exist(page, i, text):
    compile(text, f"{page}-{i}", "exec")
    named = set(re.findall(r"\b(?:ft|foretune)\.(\w+)", re.sub(r"(import|from) [^\n]*", "", text)))
    assert not named - set(dir(foretune)) - {"testing"}


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(("name", "text"), FILES, ids=[name for name, _ in FILES])
def test_file_of_pages_runs(name, text, tmp_path, monkeypatch):
    if name in UNFIT:
        pytest.importorskip(UNFIT[name])
    (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [name])
    found = runpy.run_path(str(tmp_path / name), run_name="__main__")
    if "best" in found:
        assert found["best"].config


@pytest.mark.usefixtures("_quick")
def test_readme_first_example_runs(tmp_path):
    (text, *_) = blocks(ROOT / "README.md", "python")
    (tmp_path / "readme.py").write_text(text, encoding="utf-8")
    assert runpy.run_path(str(tmp_path / "readme.py"), run_name="__main__")["best"].config


def commands(text):
    """Return the words after ``foretune`` of each command in a shell block."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&")
        lexer.whitespace_split = True
        words = list(lexer)
        for i, word in enumerate(words):
            if word == "foretune" or word.endswith("/foretune"):
                rest = words[i + 1 :]
                ends = [j for j, w in enumerate(rest) if w[0] in "|;&"]
                found.append(rest[: ends[0]] if ends else rest)
    return found


LINES = [
    pytest.param(words, id=f"{page.name}: {' '.join(words[:4])}")
    for page in PAGES
    for text in blocks(page, "sh", "bash")
    for words in commands(text)
]


@pytest.mark.parametrize("words", LINES)
def test_command_of_pages_parses(words, monkeypatch):
    parsed = []
    monkeypatch.setattr(TyperCommand, "invoke", lambda self, context: parsed.append(self.name))
    app(list(words), prog_name="foretune", standalone_mode=False)
    assert parsed


def test_pages_have_blocks_and_commands():
    assert len(FILES) >= 8
    assert len(LINES) >= 50
