"""Whose code the environments run: `measured_code.py`, and what git says of it (`revisions.py`)."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path, PurePosixPath

import pytest

from foretune.errors import MeasurementError, UsageError
from foretune.tune.gate import revisions
from foretune.tune.gate.agent.server import _hidden_names
from foretune.tune.gate.environment import AGAIN, BASE, HEAD, Environment, EnvironmentContents
from foretune.tune.gate.gate import GateOptions, run_gate
from foretune.tune.gate.measured_code import CopiedFiles, require_own_code
from foretune.tune.gate.revisions import Recipe, Repository, RevisionBuilds
from foretune.tune.gate.session import Suite

LIBRARY = "def work():\n    return sum(range({}))\n"
BENCHMARK = """
from helpers import NUMBER


def bench_work():
    from lib import work

    for _ in range(NUMBER):
        work()
"""


def commit(folder, files):
    """Write files, and commit them."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    for words in (["add", "-A"], [*identity, "commit", "-qm", "change"]):
        subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True)


@pytest.fixture
def gate_of(tmp_path, monkeypatch):
    """Return a function that gates two commits, whose library is four times slower in the head.

    The library lies in a folder; the benchmarks lie in ``work``, with a helper that changes, too.
    """
    monkeypatch.setattr(revisions, "make_environment", lambda folder: Path(sys.executable))

    def gate(library_folder, *, own=(), helpers=()):
        folder = tmp_path / "repo"
        folder.mkdir()
        subprocess.run(["git", "init", "-q", folder], check=True)
        path = f"import sys\nsys.path.insert(0, {library_folder!r})\n"
        files = {
            "work/bench_it.py": path + BENCHMARK,
            "work/helpers.py": "NUMBER = 1\n",
            f"{library_folder}/lib.py": LIBRARY.format(1000),
        }
        commit(folder, files)
        slower = {f"{library_folder}/lib.py": LIBRARY.format(4000)}
        commit(folder, {**slower, "work/helpers.py": "NUMBER = 2\n"})

        repository = Repository(folder)
        base, head = map(repository.commit_of, ("HEAD~1", "HEAD"))
        built = tmp_path / "built"
        built.mkdir()
        with RevisionBuilds(
            repository,
            Recipe("true"),
            built,
            benchmarks=Path("work"),
            measured_by=head,
            own=list(map(Path, own)),
        ) as builds:
            environments = builds.environments({BASE: base, HEAD: head, AGAIN: base})
            paths = {role: str(it.folder / "work") for role, it in environments.items()}
            copied = builds.copied_files(base, head)
            suite = Suite(paths, copied=copied, helpers=tuple(helpers))
            return run_gate(environments, suite, GateOptions(budget_s=0.1, looks={3: 1.0}))

    return gate


def test_gate_measured_code_among_the_benchmarks_is_refused(gate_of):
    """It is imported when the benchmark runs."""
    with pytest.raises(MeasurementError, match=r"work/helpers\.py differs .* --own work/helpers"):
        gate_of("work")


def test_gate_own_copy_of_measured_code_is_slower(gate_of):
    (verdict,) = gate_of("work", own=["work/lib.py"], helpers=["work/helpers.py"]).verdicts
    assert verdict.change > 1.0, "work four times as long"


def test_gate_code_outside_is_measured_and_a_changed_helper_is_named(gate_of):
    result = gate_of("src")
    assert result.verdicts[0].change > 1.0
    assert "work/helpers.py differs; all revisions ran one copy" in result.changes


def test_revision_builds_own_file_outside_of_the_benchmarks_is_refused(gate_of):
    with pytest.raises(UsageError, match="--own src is not among the benchmarks"):
        gate_of("src", own=["src"])


HERE = "/built/head"
SITE = "/built/head-env/lib/site-packages"


def contents(files, hidden=()):
    """Return what a process said that loaded these files, by module."""
    return EnvironmentContents("CPython 3.11.7", {}, files, hidden)


def notes_of(files, path, changed, tracked):
    """Return the notes on files of the head's process."""
    environments = {
        role: Environment(Path(f"/built/{role}-env/bin/python"), Path(f"/built/{role}"), role)
        for role in (BASE, HEAD)
    }
    copied = CopiedFiles(PurePosixPath(path), frozenset(changed), frozenset(tracked))
    return require_own_code(
        environments,
        {BASE: contents({}), HEAD: contents(files)},
        benchmarks=["bench/bench_it.py::bench_x", "bench_it.py::bench_x"],
        suite_path=f"{HERE}/{path}",
        copied=copied,
        helpers=(),
    )


PACKAGE = ["src/lib/__init__.py", "src/lib/core.py", "src/lib/bench/common.py"]


@pytest.mark.parametrize(
    ("path", "loaded", "outside"),
    [
        # The package is among the benchmarks, and the installed one is loaded, too.
        ("src/lib", "src/lib/core.py", f"{SITE}/lib/__init__.py"),
        # Nothing else is loaded: not of the project.
        ("src/lib/bench", "src/lib/bench/common.py", f"{SITE}/numpy/__init__.py"),
    ],
)
def test_measured_code_is_refused(path, loaded, outside):
    files = {"it": f"{HERE}/{loaded}", "outside": outside}
    with pytest.raises(MeasurementError, match=f"{loaded} differs between the revisions"):
        notes_of(files, path, [loaded], PACKAGE)


@pytest.mark.parametrize("outside", [f"{SITE}/lib/core.py", f"{HERE}/src/lib/core.py"])
def test_helpers_in_a_folder_of_the_package_are_named(outside):
    helper = "src/lib/bench/common.py"
    files = {"common": f"{HERE}/{helper}", "lib.core": outside}
    assert len(notes_of(files, "src/lib/bench", [helper], PACKAGE)) == 1
    assert notes_of(files, "src/lib/bench", [], PACKAGE) == [], "it does not differ"


def test_compiled_package_that_was_installed_from_the_checkout_is_measured(tmp_path):
    """The repository has no Python file of it."""
    site = tmp_path / "site-packages"
    (site / "fast-1.0.dist-info").mkdir(parents=True)
    origin = {"dir_info": {}, "url": "file:///built/head"}
    (site / "fast-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    (site / "fast-1.0.dist-info" / "RECORD").write_text("fast/__init__.py,,\n../x,,\n")
    helper = "benchmarks/common.py"
    files = {"common": f"{HERE}/{helper}", "fast.core": f"{site}/fast/core.so"}
    assert len(notes_of(files, "benchmarks", [helper], ["src/lib.rs"])) == 1
    files["fast.core"] = f"{site}/numpy/core.so"
    with pytest.raises(MeasurementError, match="differs between the revisions"):
        notes_of(files, "benchmarks", [helper], ["src/lib.rs"])


def refuse_same(base, head, suite_path="", helpers=()):
    """Ask whether two interpreters that loaded these files run other code."""
    folder = Path("/repo")
    require_own_code(
        {
            BASE: Environment(Path("/a/bin/python"), folder, "a"),
            HEAD: Environment(Path("/b/bin/python"), folder, "b"),
        },
        {BASE: base, HEAD: head},
        benchmarks=["bench_it.py::bench_x"],
        suite_path=suite_path,
        copied=None,
        helpers=helpers,
    )


@pytest.mark.parametrize(
    ("base", "head"),
    [
        ({"lib": "/repo/lib.py"}, {"lib": "/repo/lib.py"}),
        ({"np": "/s/site-packages/np.py"}, {"np": "/s/site-packages/np.py"}),
    ],
)
def test_two_interpreters_with_the_same_code_are_refused(base, head):
    with pytest.raises(MeasurementError, match="base and head load the same files"):
        refuse_same(contents(base), contents(head))


@pytest.mark.parametrize(
    ("base", "head"),
    [
        ({"lib": "/a/site-packages/lib.py"}, {"lib": "/b/site-packages/lib.py"}),
        # A dependency is shared, the project is not.
        (
            {"lib": "/a/lib.py", "np": "/s/site-packages/np.py"},
            {"lib": "/b/lib.py", "np": "/s/site-packages/np.py"},
        ),
        ({}, {}),
    ],
)
def test_two_interpreters_with_other_code_are_compared(base, head):
    refuse_same(contents(base), contents(head))


def test_two_interpreters_whose_installs_are_hidden_are_refused():
    """The benchmarks' folder is a checkout, which pytest puts on the path."""
    files = {"lib": "/repo/lib/__init__.py", "bench_it": "/repo/bench_it.py"}
    known = contents(files, hidden=["lib"])
    with pytest.raises(MeasurementError, match=r"load lib/__init__\.py from the benchmarks'"):
        refuse_same(known, known, suite_path="/repo")
    refuse_same(known, known, suite_path="/repo", helpers=["lib"])


def test_hidden_names_are_of_installed_modules_only(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").touch()
    (tmp_path / "single.py").touch()
    paths = dict.fromkeys(("purelib", "platlib"), str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    loaded = {
        "lib.core": "/repo/lib/core.py",
        "single": f"{tmp_path.resolve()}/single.py",
        "other": "/repo/other.py",
    }
    assert _hidden_names(loaded) == ["lib"]
