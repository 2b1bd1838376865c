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
    BuildFailed,
    Recipe,
    Repository,
    RevisionBuilds,
    find_benchmarks,
    parse_range,
    run_in,
    source_environments,
)


def commit_all(folder, message):
    """Commit all files of a repository."""
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    for words in (["add", "-A"], [*identity, "commit", "-qm", message]):
        subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """Return a repository of two commits, whose benchmarks differ."""
    folder = tmp_path / "repo"
    (folder / "benchmarks").mkdir(parents=True)

    subprocess.run(["git", "init", "-q", folder], check=True)
    for number in (1, 2):
        (folder / "lib.txt").write_text(f"code {number}")
        (folder / "benchmarks" / "bench_it.py").write_text(f"# benchmarks {number}")
        commit_all(folder, f"commit {number}")
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


@pytest.fixture
def builds(repository, tmp_path, monkeypatch):
    """Return a function that makes builds whose installation counts itself and its commit."""
    monkeypatch.setattr(revisions, "make_environment", lambda folder: Path(sys.executable))
    install = (
        "python -c \"open('installed.txt', 'w'); "
        f"open({str(tmp_path / 'log.txt')!r}, 'a').write(open('lib.txt').read() + '\\n'); "
        "exit('broken' in open('lib.txt').read())\""
    )
    folder = tmp_path / "built"
    folder.mkdir()

    def make(measured_by="HEAD", benchmarks=Path("benchmarks")):
        commit = repository.commit_of(measured_by)
        return RevisionBuilds(
            repository, Recipe(install), folder, benchmarks=benchmarks, measured_by=commit
        )

    make.log = lambda: (tmp_path / "log.txt").read_text().split("\n")[:-1]
    return make


def test_revision_builds_have_own_code_and_benchmarks_of_one_commit(repository, builds):
    first, last = map(repository.commit_of, ("HEAD~1", "HEAD"))
    with builds() as made:
        environments = made.environments({BASE: first, HEAD: last, AGAIN: first})
        folders = {role: environment.folder for role, environment in environments.items()}
        code = {role: (folder / "lib.txt").read_text() for role, folder in folders.items()}
        assert code == {BASE: "code 1", HEAD: "code 2", AGAIN: "code 1"}
        for folder in folders.values():
            assert (folder / "benchmarks" / "bench_it.py").read_text() == "# benchmarks 2"
            assert (folder / "installed.txt").exists()
    assert not any(folder.exists() for folder in folders.values())


def test_revision_builds_files_of_other_benchmarks_do_not_stay(repository, builds):
    """What the base's benchmarks had and the head's have not would run in the base only."""
    (repository.root / "benchmarks" / "bench_old.py").write_text("# old")
    commit_all(repository.root, "a benchmark that goes")
    (repository.root / "benchmarks" / "bench_old.py").unlink()
    commit_all(repository.root, "it has gone")
    with builds() as made:
        environments = made.environments({BASE: repository.commit_of("HEAD~1")})
        assert os.listdir(environments[BASE].folder / "benchmarks") == ["bench_it.py"]


def test_revision_builds_build_each_commit_once(repository, builds):
    """A bisection keeps its good commit, which may be older than the benchmarks."""
    first = repository.commit_of("HEAD")
    for number in (3, 4):
        (repository.root / "lib.txt").write_text(f"code {number}")
        commit_all(repository.root, f"commit {number}")
    with builds(measured_by="HEAD") as made:
        for head in ("HEAD", "HEAD~1"):
            commits = {BASE: first, HEAD: repository.commit_of(head), AGAIN: first}
            environments = made.environments(commits)
        assert (environments[HEAD].folder / "lib.txt").read_text() == "code 3"
    assert builds.log() == ["code 2", "code 4", "code 2", "code 3"]


def test_revision_builds_failed_build_leaves_the_others(repository, builds):
    first = repository.commit_of("HEAD")
    (repository.root / "lib.txt").write_text("broken")
    commit_all(repository.root, "it does not build")
    with builds() as made:
        made.environments({BASE: first})
        with pytest.raises(BuildFailed):
            made.environments({BASE: first, HEAD: repository.commit_of("HEAD")})
        made.environments({BASE: first, HEAD: first})
    assert builds.log() == ["code 2", "broken", "code 2"]


OUTPUT_OF_PIP = """
  error: subprocess-exited-with-error
  exit code: 1
  ╰─> [4 lines of output]
      Traceback (most recent call last):
      ImportError: caught
      going on
      error: command 'gcc' failed
      [end of output]
ERROR: Failed building wheel for x
"""


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("what it did\nERROR: no compiler", "ERROR: no compiler"),
        (
            "  ImportError: no setuptools\nerror: metadata-generation-failed",
            "ImportError: no setuptools",
        ),
        ("no word of an error", "no word of an error"),
        (OUTPUT_OF_PIP, "error: command 'gcc' failed"),
    ],
)
def test_run_in_failing_command_names_the_cause(tmp_path, message, cause):
    command = ["python", "-c", f"raise SystemExit({message!r})"]
    with pytest.raises(BuildFailed, match=rf"failed in .*: {cause}"):
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


@pytest.mark.parametrize(
    ("benchmarks", "reason"),
    [
        ("../outside", "outside of the repository"),
        ("not_committed", "is not in"),
        (".", "the benchmarks are the whole repository"),
    ],
)
def test_revision_builds_refuse_benchmarks(builds, benchmarks, reason):
    """A folder outside of the repository is never touched; one must be in the head commit."""
    with pytest.raises(UsageError, match=reason):
        builds(benchmarks=Path(benchmarks))
