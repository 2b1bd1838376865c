"""Revisions, and what pytest does without a gate: `tune/gate/revisions.py`, `pytest_fixture.py`."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from foretune.errors import UsageError
from foretune.tune.gate import revisions
from foretune.tune.gate.environment import AGAIN, BASE, HEAD
from foretune.tune.gate.revisions import (
    Recipe,
    Repository,
    find_benchmarks,
    parse_range,
    revision_environments,
    run_in,
    source_environments,
)


@pytest.fixture
def repository(tmp_path):
    """Return a repository of two commits, whose benchmarks differ."""
    folder = tmp_path / "repo"
    (folder / "benchmarks").mkdir(parents=True)

    def git(*words):
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True)

    git("init", "-q")
    for number in (1, 2):
        (folder / "lib.txt").write_text(f"code {number}")
        (folder / "benchmarks" / "bench_it.py").write_text(f"# benchmarks {number}")
        git("add", "-A")
        git("commit", "-qm", f"commit {number}")
    return Repository(folder)


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("main..topic", ("main", "topic")),
        ("main..", ("main", "HEAD")),
    ],
)
def test_parse_range(text, pair):
    assert parse_range(text) == pair


def test_parse_range_single_revision_is_refused():
    with pytest.raises(UsageError, match=r"write BASE\.\.HEAD"):
        parse_range("main")


def test_repository_unknown_revision_is_refused(repository):
    with pytest.raises(UsageError, match="there is no revision nowhere in"):
        repository.commit_of("nowhere")


def test_repository_lists_commits_in_order(repository):
    first = repository.commit_of("HEAD~1")
    last = repository.commit_of("HEAD")
    assert repository.commits_between(first, last) == [last]


def test_revision_environments_have_own_code_and_the_heads_benchmarks(
    repository, tmp_path, monkeypatch
):
    monkeypatch.setattr(revisions, "make_environment", lambda folder: Path(sys.executable))
    commits = {
        BASE: repository.commit_of("HEAD~1"),
        HEAD: repository.commit_of("HEAD"),
        AGAIN: repository.commit_of("HEAD~1"),
    }
    recipe = Recipe(install="python -c \"open('installed.txt', 'w')\"")
    built = tmp_path / "built"
    built.mkdir()
    with revision_environments(
        repository, commits, Path("benchmarks"), recipe, built
    ) as environments:
        folders = {role: environment.folder for role, environment in environments.items()}
        code = {role: (folder / "lib.txt").read_text() for role, folder in folders.items()}
        assert code == {BASE: "code 1", HEAD: "code 2", AGAIN: "code 1"}
        for folder in folders.values():
            assert (folder / "benchmarks" / "bench_it.py").read_text() == "# benchmarks 2"
            assert (folder / "installed.txt").exists()
    assert not any(folder.exists() for folder in folders.values())


def test_run_in_failing_command_names_its_last_line(tmp_path):
    command = ["python", "-c", "raise SystemExit('ERROR: no compiler')"]
    with pytest.raises(UsageError, match=r"failed in .*: ERROR: no compiler"):
        run_in(Path(sys.executable), command, tmp_path)


def test_parse_range_from_the_merge_base_is_refused():
    with pytest.raises(UsageError, match="starts at the merge base"):
        parse_range("main...topic")


def test_find_benchmarks_default_folders(tmp_path):
    with pytest.raises(UsageError, match="has no folder benchmarks or bench"):
        find_benchmarks(tmp_path, "")
    (tmp_path / "bench").mkdir()
    assert find_benchmarks(tmp_path, "") == Path("bench")
    with pytest.raises(UsageError, match="there is no other in"):
        find_benchmarks(tmp_path, "other")


def test_source_environments_interpreter_is_used_as_it_is(tmp_path):
    found = source_environments({BASE: sys.executable}, Recipe(), tmp_path)
    assert found[BASE].python == Path(sys.executable).absolute()


TEST_FILE = """
def test_call(benchmark):
    assert benchmark(len, [1]) == 1

def test_pedantic(benchmark):
    assert benchmark.pedantic(len, setup=lambda: (([1, 2],), {}), rounds=3) == 2
"""
OTHER_PLUGIN = """
import pytest

@pytest.fixture
def benchmark():
    return "theirs"
"""


def run_pytest(folder, *plugins):
    words = [word for plugin in plugins for word in ("-p", plugin)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, folder]
    variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(folder)}
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **variables}, check=False
    )


def test_pytest_fixture_calls_once_without_a_gate(tmp_path):
    (tmp_path / "test_it.py").write_text(TEST_FILE)
    done = run_pytest(tmp_path, "foretune.tune.gate.pytest_fixture")
    assert done.returncode == 0, done.stdout


def test_pytest_fixture_leaves_that_of_other_plugins(tmp_path):
    (tmp_path / "pytest_benchmark.py").write_text(OTHER_PLUGIN)
    text = "def test_it(benchmark):\n    assert benchmark == 'theirs'\n"
    (tmp_path / "test_it.py").write_text(textwrap.dedent(text))
    done = run_pytest(tmp_path, "pytest_benchmark", "foretune.tune.gate.pytest_fixture")
    assert done.returncode == 0, done.stdout


def test_revision_environments_refuse_benchmarks_that_are_elsewhere(repository, tmp_path):
    """A folder outside of the repository is never touched; one must be in the head commit."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "bench_x.py").write_text("kept")
    commits = dict.fromkeys((BASE, HEAD), repository.commit_of("HEAD"))
    for path, says in [
        (Path("..") / "outside", "outside of the repository"),
        (Path("not_committed"), "is not in"),
    ]:
        environments = revision_environments(repository, commits, path, Recipe(), tmp_path / "made")
        with pytest.raises(UsageError, match=says), environments:
            pass
    assert (outside / "bench_x.py").read_text() == "kept"
