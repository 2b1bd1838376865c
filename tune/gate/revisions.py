"""Makes environments: of git revisions, wheels, requirements, or interpreters that exist.

A revision is checked out with ``git worktree`` into a folder of its own, and installed into a
virtual environment of its own. The base is built twice. All three run the head's benchmarks, so
that they do the same work.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretune.errors import UsageError
from foretune.support.progress import SILENT, Progress
from foretune.tune.gate.environment import AGAIN, BASE, HEAD, Environment

INSTALL = "python -m pip install ."
"""How a project is installed, by default."""
BENCHMARK_FOLDERS = ("benchmarks", "bench", "asv_bench/benchmarks", "tests/benchmarks")
"""Where benchmarks are, by default."""
MAX_MESSAGE = 300
"""Characters of a failed command's message that are kept."""
FOLDER_OF = {BASE: "base", HEAD: "head", AGAIN: "twin"}
"""Role -> folder of its checkout; all names are equally long, as the length moves memory."""


@dataclass(frozen=True)
class Recipe:
    """How environments are made.

    Attributes:
        install: command that installs the project in the present folder.
        extra: requirements that are installed as well, such as ``pytest``.
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

    @contextlib.contextmanager
    def worktree(self, commit: str, folder: Path) -> Iterator[Path]:
        """Check a commit out into a folder, until the block ends."""
        _git(self.root, "worktree", "add", "--detach", "--quiet", str(folder), commit)
        try:
            yield folder
        finally:
            with contextlib.suppress(UsageError):
                _git(self.root, "worktree", "remove", "--force", str(folder))


@contextlib.contextmanager
def revision_environments(
    repository: Repository,
    commits: Mapping[str, str],
    benchmarks: Path | None,
    recipe: Recipe,
    folder: Path,
    progress: Progress = SILENT,
) -> Iterator[dict[str, Environment]]:
    """Build commits, by role, and yield their environments; the worktrees end with the block.

    ``benchmarks`` is relative to the repository; those of the head replace the others'.
    """
    progress.start("building", len(commits))
    if benchmarks is not None and ".." in benchmarks.parts:
        raise UsageError(f"{benchmarks} lies outside of the repository: give benchmarks inside")
    environments = {}
    with contextlib.ExitStack() as stack:
        trees = {
            role: stack.enter_context(repository.worktree(commit, folder / FOLDER_OF[role]))
            for role, commit in commits.items()
        }
        if benchmarks is not None and not (trees[HEAD] / benchmarks).exists():
            label = repository.name_of(commits[HEAD])
            raise UsageError(f"{benchmarks} is not in {label}: commit it, or name another folder")
        for role, commit in commits.items():
            python = make_environment(folder / f"{FOLDER_OF[role]}-env")
            run_in(python, shlex.split(recipe.install), trees[role])
            _install_extra(python, recipe.extra)
            environments[role] = Environment(python, trees[role], repository.name_of(commit))
            progress.advance(environments[role].label)
        if benchmarks is not None:
            for role, tree in trees.items():
                if role != HEAD:
                    _replace(tree / benchmarks, trees[HEAD] / benchmarks)
        yield environments


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
    """Run a command in an environment; UsageError with its last line if it fails."""
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


def _replace(target: Path, source: Path) -> None:
    """Replace a file or folder by a copy of another one."""
    if target.is_dir():
        shutil.rmtree(target)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise UsageError("git is not installed: give --base and --head instead") from None
    if done.returncode != 0:
        message = _last_line(done.stderr) or f"exit code {done.returncode}"
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
        message = _last_line(done.stderr) or _last_line(done.stdout) or "no message"
        raise UsageError(f"'{shlex.join(command)}' failed in {folder}: {message}")


def _last_line(text: str) -> str:
    errors = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in errors if line.lower().startswith(("error", "fatal"))]
    return (named or errors or [""])[-1][:MAX_MESSAGE]
