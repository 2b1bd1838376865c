"""Makes environments: of git revisions, wheels, requirements, or interpreters that exist.

A revision is checked out with ``git worktree`` into a folder of its own, and installed into a
virtual environment of its own. The base is built twice. All three run the benchmarks of one commit,
so that they do the same work.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from foretune.errors import UsageError
from foretune.support.progress import SILENT, Progress
from foretune.tune.gate.environment import AGAIN, BASE, HEAD, Environment
from foretune.tune.gate.measured_code import CopiedFiles

INSTALL = "python -m pip install ."
"""How a project is installed, by default."""
BENCHMARK_FOLDERS = ("benchmarks", "bench", "asv_bench/benchmarks", "tests/benchmarks")
"""Where benchmarks are, by default."""
MAX_MESSAGE = 300
"""Characters of a failed command's message that are kept."""
RAISED = re.compile(r"(\w+\.)*\w*(Error|Exception): ")
"""Begins the last line of an exception in Python."""
FAILED_OUTPUT = re.compile(r"\[\d+ lines of output\]\n(.*?)\n\s*\[end of output\]", re.DOTALL)
"""What pip prints of a program that it ran, and that failed."""
FOLDER_OF = {BASE: "base", HEAD: "head", AGAIN: "twin"}
"""Role -> folder of its checkout; all names are equally long, as the length moves memory."""


class BuildFailed(UsageError):
    """A revision cannot be installed, or what its benchmarks need."""


@dataclass(frozen=True)
class Recipe:
    """How environments are made.

    Attributes:
        install: command that installs the project in the present folder.
        extra: requirements that are installed before it, such as ``pytest``.
    """

    install: str = INSTALL
    extra: tuple[str, ...] = ()


def parse_range(text: str) -> tuple[str, str]:
    """Return base and head of ``BASE..HEAD``; an empty side is HEAD, as in git."""
    base, dots, head = text.partition("..")
    if not dots:
        raise UsageError(f"{text!r} is no range of revisions: write BASE..HEAD, such as main..HEAD")
    if head.startswith("."):
        raise UsageError(
            f"{text} starts at the merge base in git: write BASE..HEAD, with that commit as BASE"
        )
    return base or "HEAD", head or "HEAD"


def find_benchmarks(folder: Path, given: str) -> Path:
    """Return the file or folder of the benchmarks, relative to ``folder``."""
    if given:
        path = Path(given)
        if path.is_absolute():
            path = Path(os.path.relpath(path, folder))
        if not (folder / path).exists():
            raise UsageError(f"there is no {given} in {folder}: give the folder of the benchmarks")
        return path
    for name in BENCHMARK_FOLDERS:
        if (folder / name).is_dir():
            return Path(name)
    raise UsageError(
        f"{folder} has no folder {' or '.join(BENCHMARK_FOLDERS)}: name the folder of the "
        "benchmarks, or give --command"
    )


class Repository:
    """A git repository, and the worktrees that are made of it."""

    def __init__(self, folder: Path) -> None:
        self.root = Path(_git(folder, "rev-parse", "--show-toplevel"))

    def commit_of(self, revision: str) -> str:
        """Return the commit of a revision; UsageError if there is none."""
        try:
            return _git(self.root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
        except UsageError:
            raise UsageError(
                f"there is no revision {revision} in {self.root}: fetch it, or correct its name"
            ) from None

    def name_of(self, commit: str) -> str:
        """Return a short name."""
        return _git(self.root, "rev-parse", "--short=10", commit)

    def commits_between(self, good: str, bad: str) -> list[str]:
        """Return the commits after ``good``, up to ``bad``, along the first parents."""
        listed = _git(self.root, "rev-list", "--reverse", "--first-parent", f"{good}..{bad}")
        return listed.split()

    def files_of(self, commit: str) -> list[str]:
        """Return the paths of all files of a commit."""
        listed = _git(self.root, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit)
        return [path for path in listed.split("\0") if path]

    def changed_files(self, base: str, head: str, path: PurePosixPath) -> list[str]:
        """Return the files in a file or folder that both commits have, and that differ."""
        words = ["diff", "-z", "--name-only", "--no-renames", "--diff-filter=MT", base, head]
        listed = _git(self.root, *words, "--", _from_the_root(path))
        return [path for path in listed.split("\0") if path]

    def check_benchmarks(self, path: Path, commit: str) -> None:
        """Raise UsageError unless a commit has this file or folder, and it is not everything."""
        if ".." in path.parts:
            raise UsageError(f"{path} lies outside of the repository: give benchmarks inside")
        if path == Path():
            raise UsageError(
                "the benchmarks are the whole repository, so both revisions would run the same "
                "code: give their folder or file"
            )
        try:
            _git(self.root, "cat-file", "-e", f"{commit}:{path.as_posix()}")
        except UsageError:
            raise UsageError(
                f"{path} is not in {self.name_of(commit)}: commit it, or name another folder"
            ) from None

    @contextlib.contextmanager
    def worktree(self, commit: str, folder: Path) -> Iterator[Path]:
        """Check a commit out into a folder, until the block ends."""
        _git(self.root, "worktree", "add", "--detach", "--quiet", str(folder), commit)
        try:
            yield folder
        finally:
            with contextlib.suppress(UsageError):
                _git(self.root, "worktree", "remove", "--force", str(folder))


class RevisionBuilds:
    """The environments of commits, by role; each is built once. All end with the block.

    They run the benchmarks of one commit, ``measured_by``, in the folder or file ``benchmarks``
    relative to the repository; None if nothing in the repository is a benchmark. Of ``own`` files
    and folders among them, each commit keeps its own.
    """

    def __init__(
        self,
        repository: Repository,
        recipe: Recipe,
        folder: Path,
        *,
        benchmarks: Path | None = None,
        measured_by: str = "",
        own: Sequence[Path] = (),
        progress: Progress = SILENT,
    ) -> None:
        if benchmarks is not None:
            repository.check_benchmarks(benchmarks, measured_by)
        for path in own:
            if benchmarks is None or not path.is_relative_to(benchmarks):
                raise UsageError(
                    f"--own {path} is not among the benchmarks ({benchmarks or 'there are none'}), "
                    "so each revision runs its own anyway: leave it out"
                )
            repository.check_benchmarks(path, measured_by)
        self._repository = repository
        self._recipe = recipe
        self._folder = folder
        self.benchmarks = benchmarks
        self._measured_by = measured_by
        self._own = [PurePosixPath(path) for path in own]
        self._progress = progress
        self._builds: dict[str, _Build] = {}

    @property
    def root(self) -> Path:
        """The repository's folder."""
        return self._repository.root

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for role in [*self._builds]:
            self._remove(role)

    def environments(self, commits: Mapping[str, str]) -> dict[str, Environment]:
        """Return the environments of commits by role; build those that are not there yet."""
        missing = [role for role in commits if self._commit_of(role) != commits[role]]
        self._progress.start("building", len(missing))
        for role in missing:
            self._remove(role)
            self._builds[role] = self._build(role, commits[role])
            self._progress.advance(self._builds[role].environment.label)
        return {role: self._builds[role].environment for role in commits}

    def copied_files(self, base: str, head: str) -> CopiedFiles | None:
        """Return which files the checkouts of two commits have as ``measured_by`` has them."""
        if self.benchmarks is None:
            return None
        path = PurePosixPath(self.benchmarks)
        changed = [
            file
            for file in self._repository.changed_files(base, head, path)
            if not any(PurePosixPath(file).is_relative_to(own) for own in self._own)
        ]
        tracked = self._repository.files_of(self._measured_by)
        return CopiedFiles(path, changed=frozenset(changed), tracked=frozenset(tracked))

    def _commit_of(self, role: str) -> str:
        return self._builds[role].commit if role in self._builds else ""

    def _build(self, role: str, commit: str) -> "_Build":
        name = FOLDER_OF[role]
        tree = self._folder / name
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._repository.worktree(commit, tree))
            place = self._folder / f"{name}-env"
            stack.callback(shutil.rmtree, place, ignore_errors=True)
            python = make_environment(place)
            # The project may need them when it is built without isolation.
            _install_extra(python, self._recipe.extra)
            run_in(python, shlex.split(self._recipe.install), tree)

            # The project is built from its own files, then the benchmarks are replaced.
            if self.benchmarks is not None and commit != self._measured_by:
                _replace_files(tree, self.benchmarks, self._measured_by, but=self._own)
            environment = Environment(python, tree, self._repository.name_of(commit))
            return _Build(commit, environment, files=stack.pop_all())

    def _remove(self, role: str) -> None:
        if role in self._builds:
            self._builds.pop(role).files.close()


@dataclass(frozen=True)
class _Build:
    """A commit's environment; closing ``files`` removes its files."""

    commit: str
    environment: Environment
    files: contextlib.ExitStack


def source_environments(
    sources: Mapping[str, str], recipe: Recipe, folder: Path, progress: Progress = SILENT
) -> dict[str, Environment]:
    """Return the environments of interpreters, wheels or requirements, by role.

    An interpreter is used as it is. For a wheel, an archive or a requirement such as
    ``PACKAGE==1.0``, an environment is made in ``folder``.
    """
    progress.start("building", len(sources))
    environments = {}
    for role, source in sources.items():
        if is_interpreter(source):
            python = Path(os.path.abspath(shutil.which(source) or source))
        else:
            python = make_environment(folder / f"{FOLDER_OF[role]}-env")
            run_in(python, ["python", "-m", "pip", "install", _requirement(source)], folder)
            _install_extra(python, recipe.extra)
        environments[role] = Environment(python, Path.cwd(), source)
        progress.advance(source)
    return environments


def is_interpreter(source: str) -> bool:
    """Whether a source is a Python interpreter, not something to install."""
    found = shutil.which(source)
    return found is not None and Path(found).name.startswith(("python", "pypy"))


def make_environment(folder: Path) -> Path:
    """Make a virtual environment with pip, and return its interpreter."""
    _run([sys.executable, "-m", "venv", str(folder)], Path.cwd(), dict(os.environ))
    return folder / "bin" / "python"


def run_in(python: Path, command: Sequence[str], folder: Path) -> None:
    """Run a command in an environment; BuildFailed with the cause if it fails."""
    variables = Environment(python, folder, "").variables(hash_seed=0)
    variables |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONHASHSEED": "random"}
    _run(command, folder, variables)


def _install_extra(python: Path, requirements: Sequence[str]) -> None:
    if requirements:
        run_in(python, ["python", "-m", "pip", "install", *requirements], python.parent)


def _requirement(source: str) -> str:
    """Return what pip installs; UsageError if the source is neither a file nor a requirement."""
    if Path(source).is_file() and source.endswith((".whl", ".tar.gz", ".zip")):
        return str(Path(source).resolve())
    if "==" in source or " @ " in source:
        return source
    raise UsageError(
        f"{source} is no Python interpreter, wheel or requirement: give the path of an "
        "interpreter or a .whl file, or PACKAGE==VERSION"
    )


def _replace_files(tree: Path, path: Path, commit: str, but: Sequence[PurePosixPath]) -> None:
    """Make a file or folder of a checkout as it is in a commit; no file of another one stays.

    Those in ``but`` stay as they are.
    """
    words = ["restore", f"--source={commit}", "--staged", "--worktree", "--"]
    kept = [f":(top,literal,exclude){kept_path}" for kept_path in but]
    _git(tree, *words, _from_the_root(PurePosixPath(path)), *kept)


def _from_the_root(path: PurePosixPath) -> str:
    """Return a path for git, which takes neither signs in it nor the present folder for more."""
    return f":(top,literal){path}"


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise UsageError("git is not installed: give --base and --head instead") from None
    if done.returncode != 0:
        message = _cause(done.stderr) or f"exit code {done.returncode}"
        raise UsageError(f"git {words[0]}: {message}")
    return done.stdout.strip()


def _run(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
    # A command is looked up on the new path, not on that of this process.
    program = shutil.which(command[0], path=variables.get("PATH"))
    if program is None:
        raise UsageError(f"{command[0]} is not installed: change --install")
    done = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        message = _cause(done.stderr) or _cause(done.stdout) or "no message"
        raise BuildFailed(f"'{shlex.join(command)}' failed in {folder}: {message}")


def _cause(text: str) -> str:
    """Return the line that says why a command failed.

    Installers end with lines that only say that something failed before.
    """
    outputs = FAILED_OUTPUT.findall(text)
    lines = [line.strip() for line in (outputs or [text])[-1].splitlines() if line.strip()]
    raised = [line for line in lines if RAISED.match(line)]
    named = [line for line in lines if line.lower().startswith(("error", "fatal"))]
    if outputs:
        # A program ends with its cause: exceptions before that were caught.
        causes = [line for line in lines if line in raised or line in named]
    else:
        causes = raised or named
    return (causes or lines or [""])[-1][:MAX_MESSAGE]
