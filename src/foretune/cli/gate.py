"""``foretune gate``: compares two revisions of a project by their benchmarks."""

import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.errors import ForetuneError, UsageError
from foretune.support.console import progress_bar
from foretune.support.progress import Progress

if TYPE_CHECKING:
    from foretune.tune.gate.case import Metric
    from foretune.tune.gate.environment import Environment
    from foretune.tune.gate.gate import GateOptions, GateResult
    from foretune.tune.gate.measured_code import CopiedFiles
    from foretune.tune.gate.revisions import Recipe, Repository, RevisionBuilds

METRICS = ("time", "gpu", "memory", "energy")
NOT_OF_BISECT = ("markdown", "junit", "html", "record", "mlflow", "strict", "compare")
"""Options of a single gate."""
RED_EXIT_CODE = 1
SHELL_SIGNS = "();<>|&`$\n"


def gate(
    context: typer.Context,
    revisions: str = typer.Argument(
        "", help="BASE..HEAD, such as main..HEAD. Without it: --base and --head."
    ),
    benchmarks: str = typer.Argument(
        "", help="File or folder of the benchmarks. Default: benchmarks/, bench/, …"
    ),
    base: str = typer.Option("", help="Base: a Python, a wheel or PACKAGE==VERSION."),
    head: str = typer.Option("", help="Head: a Python, a wheel or PACKAGE==VERSION."),
    install: str = typer.Option(
        "python -m pip install .", help="Command that installs a revision in its folder."
    ),
    with_: list[str] = typer.Option(
        [], "--with", help="Also install this in all environments, such as pytest (repeatable)."
    ),
    own: list[str] = typer.Option(
        [],
        help="A file or folder among the benchmarks that is measured: each revision runs its own "
        "(repeatable).",
    ),
    helper: list[str] = typer.Option(
        [], help="A file or folder that belongs to the benchmarks: one copy for all (repeatable)."
    ),
    budget: float = typer.Option(60.0, help="Seconds of measuring; building is not included."),
    relevant: float = typer.Option(0.02, help="Relative change that counts: 0.02 is 2 %."),
    only: list[str] = typer.Option(
        [], help="Benchmarks whose name contains this text (repeatable)."
    ),
    command: list[str] = typer.Option([], help="Time a command line, too (repeatable)."),
    import_: list[str] = typer.Option(
        [], "--import", help="Time the import of a module, too (repeatable)."
    ),
    metric: str = typer.Option(
        "time",
        help="time, gpu (time on the GPU, by events), memory (the peak), energy; or several: "
        "time,memory.",
    ),
    compare: bool = typer.Option(False, "--compare", help="Red if outputs differ."),
    strict: bool = typer.Option(
        False, "--strict", help="End with exit code 2 if a verdict is open."
    ),
    limit: float = typer.Option(60.0, help="Maximum seconds of one call."),
    pytest_option: list[str] = typer.Option(
        [], "--pytest", help="One more word for pytest, such as --import-mode=importlib."
    ),
    markdown: Path | None = typer.Option(None, help="Write a pull request's comment here."),
    junit: Path | None = typer.Option(None, help="Write JUnit XML here."),
    html: Path | None = typer.Option(None, help="Write a page here."),
    record: Path | None = typer.Option(None, help="Append the times to this run table (.parquet)."),
    mlflow: bool = typer.Option(False, "--mlflow", help="Also write a run to MLflow."),
    bisect: bool = typer.Option(
        False, "--bisect", help="Find the commit of BASE..HEAD that made something slower."
    ),
) -> None:
    """Compare two revisions by their benchmarks: is something slower?

    Exit code 0: nothing is slower. 1: something is slower, or fails. 2: an error, or with --strict
    an open verdict. Equal code has a red verdict in at most 1 of 100 runs.

    Example: foretune gate main..HEAD benchmarks/

    Example: foretune gate --base lib==1.0 --head lib==1.1 bench_lib.py
    """
    from foretune.tune.gate.gate import GateOptions
    from foretune.tune.gate.revisions import Recipe

    if revisions and not _is_range(revisions):
        if benchmarks:
            raise UsageError(f"{revisions!r} is no range of revisions: write BASE..HEAD")
        benchmarks = revisions
        revisions = ""
    _check_line(revisions, base, head, bisect=bisect, own=own)
    _check_options(context)
    metrics = _read_metrics(metric)
    run = _Run(
        benchmarks=benchmarks,
        commands=tuple(command),
        imports=tuple(import_),
        pytest_options=tuple(pytest_option),
        own=tuple(own),
        helpers=tuple(helper),
        recipe=Recipe(install=install, extra=tuple(with_)),
        options=GateOptions(
            budget_s=budget,
            relevant=relevant,
            metrics=metrics,
            only=tuple(only),
            limit_s=limit,
            seed=options.root_options(context).seed,
            compares_outputs=compare,
        ),
    )
    output = Output(options.root_options(context).as_json)
    with progress_bar() as progress, _errors_are_not_red():
        if bisect:
            _bisect(run, revisions, output, progress)
            return
        if revisions:
            result = run.of_revisions(revisions, progress)
        else:
            result = run.of_sources(base, head, progress)
    with _errors_are_not_red():
        _report(result, output, markdown=markdown, junit=junit, html=html)
        if record is not None:
            _record(result, record, output)
        if mlflow:
            _track(result, output)
    output.result(result.to_dict())
    if code := result.exit_code(strict):
        raise typer.Exit(code)


@contextmanager
def _errors_are_not_red() -> Iterator[None]:
    """Turn errors of exit code 1, which would say that something is slower, into those of 2."""
    try:
        yield
    except ForetuneError as e:
        if e.exit_code != RED_EXIT_CODE:
            raise
        raise UsageError(str(e)) from e


class _Run:
    """A gate as the command line describes it."""

    def __init__(
        self,
        *,
        benchmarks: str,
        commands: tuple[str, ...],
        imports: tuple[str, ...],
        pytest_options: tuple[str, ...],
        own: tuple[str, ...],
        helpers: tuple[str, ...],
        recipe: "Recipe",
        options: "GateOptions",
    ) -> None:
        self._benchmarks = benchmarks
        self._commands = commands
        self._imports = imports
        self._pytest_options = pytest_options
        self._own = own
        self._helpers = helpers
        self._recipe = recipe
        self._options = options

    def of_revisions(self, revisions: str, progress: Progress) -> "GateResult":
        """Build and compare two revisions of the repository in the present folder."""
        from foretune.tune.gate.revisions import Repository, parse_range

        repository = Repository(Path.cwd())
        base, head = map(repository.commit_of, parse_range(revisions))
        with self.building(repository, measured_by=head, progress=progress) as builds:
            return self.of_commits(builds, base=base, head=head, progress=progress)

    @contextmanager
    def building(
        self, repository: "Repository", measured_by: str, progress: Progress
    ) -> "Iterator[RevisionBuilds]":
        """Yield what builds commits, with the benchmarks of the commit ``measured_by``."""
        from foretune.tune.gate.revisions import RevisionBuilds

        with (
            tempfile.TemporaryDirectory(prefix="foretune-") as folder,
            RevisionBuilds(
                repository,
                self._recipe,
                Path(folder),
                benchmarks=self._benchmarks_of(repository),
                measured_by=measured_by,
                own=[_relative(path, repository.root) for path in self._own],
                progress=progress,
            ) as builds,
        ):
            yield builds

    def of_commits(
        self,
        builds: "RevisionBuilds",
        *,
        base: str,
        head: str,
        only: Sequence[str] = (),
        progress: Progress,
    ) -> "GateResult":
        """Build and compare two commits; ``only`` replaces the benchmarks' names."""
        from foretune.tune.gate.environment import AGAIN, BASE, HEAD

        environments = builds.environments({BASE: base, HEAD: head, AGAIN: base})
        paths = {
            role: str(environment.folder / builds.benchmarks) if builds.benchmarks else ""
            for role, environment in environments.items()
        }
        helpers = [_relative(path, builds.root) for path in self._helpers]
        return self._compare(
            environments,
            paths,
            only,
            progress,
            copied=builds.copied_files(base, head),
            helpers=helpers,
        )

    def _benchmarks_of(self, repository: "Repository") -> Path | None:
        """Return the path of the benchmarks in a repository; it is given from this folder."""
        from foretune.tune.gate.revisions import find_benchmarks

        if not self._needs_benchmarks:
            return None
        given = str(Path(self._benchmarks).absolute()) if self._benchmarks else ""
        return find_benchmarks(repository.root, given)

    def of_sources(self, base: str, head: str, progress: Progress) -> "GateResult":
        """Compare two interpreters, wheels or requirements."""
        from foretune.tune.gate.environment import AGAIN, BASE, HEAD
        from foretune.tune.gate.revisions import find_benchmarks, source_environments

        path = ""
        if self._needs_benchmarks:
            here = Path.cwd()
            path = str((here / find_benchmarks(here, self._benchmarks)).resolve())
        with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
            sources = {BASE: base, HEAD: head, AGAIN: base}
            environments = source_environments(sources, self._recipe, Path(folder), progress)
            paths = dict.fromkeys(environments, path)
            helpers = [_relative(helper, Path.cwd()) for helper in self._helpers]
            return self._compare(environments, paths, (), progress, copied=None, helpers=helpers)

    @property
    def _needs_benchmarks(self) -> bool:
        """Whether files are measured, not only command lines and imports."""
        return bool(self._benchmarks) or not (self._commands or self._imports)

    def _compare(
        self,
        environments: "dict[str, Environment]",
        paths: dict[str, str],
        only: Sequence[str],
        progress: Progress,
        *,
        copied: "CopiedFiles | None",
        helpers: Sequence[Path],
    ) -> "GateResult":
        from foretune.tune.gate.gate import run_gate
        from foretune.tune.gate.session import Suite

        suite = Suite(
            path=paths,
            commands=self._commands,
            imports=self._imports,
            pytest_options=self._pytest_options,
            copied=copied,
            helpers=tuple(helper.as_posix() for helper in helpers),
            measures_memory="memory" in self._options.metrics,
        )
        gate_options = replace(self._options, only=tuple(only)) if only else self._options
        return run_gate(environments, suite, gate_options, progress=progress)


def _relative(text: str, folder: Path) -> Path:
    """Return a path, given from the present folder, relative to ``folder``."""
    return Path(os.path.relpath(Path(text).absolute(), folder))


def _is_range(text: str) -> bool:
    """Whether an argument is BASE..HEAD; a path may begin with two dots."""
    return ".." in text and ".." not in Path(text).parts


def _check_line(revisions: str, base: str, head: str, *, bisect: bool, own: Sequence[str]) -> None:
    if revisions and (base or head):
        raise UsageError("give either BASE..HEAD, or --base and --head")
    if not revisions and not (base and head):
        raise UsageError("what is compared? Give BASE..HEAD, or both --base and --head")
    if bisect and not revisions:
        raise UsageError("--bisect needs GOOD..BAD")
    if own and not revisions:
        raise UsageError("--own needs BASE..HEAD: two installs run the same benchmarks")


def _check_options(context: typer.Context) -> None:
    """Raise UsageError for options that are wrong, before anything is built."""
    given = context.params
    options.require_positive(given["budget"], "--budget")
    options.require_positive(given["limit"], "--limit")
    if not 0 < given["relevant"] < 1:
        raise UsageError(f"--relevant {given['relevant']} is no share: 0.02 is 2 %")
    if given["bisect"]:
        options.reject_options(context, NOT_OF_BISECT, "--bisect does not take")
    record = given["record"]
    if record is not None and record.suffix != ".parquet":
        raise UsageError(f"--record {record}: a run table is a Parquet file, NAME.parquet")
    for path in (*given["own"], *given["helper"]):
        if not Path(path).exists():
            raise UsageError(f"there is no {path}: give the path of a file or folder")
    for line in given["command"]:
        _check_command(line)


def _check_command(line: str) -> None:
    """Raise UsageError for a line that only a shell understands: its first program is timed."""
    try:
        words = shlex.split(line)
    except ValueError as e:
        raise UsageError(f"--command {line}: {e}") from e
    if not words or "=" in words[0] or any(sign in line for sign in SHELL_SIGNS):
        raise UsageError(
            f"--command {line!r} is no program with its words: write the rest into a script"
        )


def _read_metrics(text: str) -> "tuple[Metric, ...]":
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise UsageError(f"--metric {unknown[0]!r} is unknown: give {' or '.join(METRICS)}")
    return tuple(dict.fromkeys(names))  # type: ignore[arg-type]


def _bisect(run: _Run, revisions: str, output: Output, progress: Progress) -> None:
    from foretune.tune.gate.bisect import bisect
    from foretune.tune.gate.gate import GateResult
    from foretune.tune.gate.revisions import BuildFailed, Repository, parse_range

    repository = Repository(Path.cwd())
    good, bad = map(repository.commit_of, parse_range(revisions))
    commits = [good, *repository.commits_between(good, bad)]

    # The good commit stays built. The benchmarks may be younger than it.
    with run.building(repository, measured_by=bad, progress=progress) as builds:

        def test(commit: str, only: Sequence[str]) -> GateResult | None:
            try:
                result = run.of_commits(
                    builds, base=good, head=commit, only=only, progress=progress
                )
            except BuildFailed as e:
                if commit == bad:
                    raise
                output.say(f"{commit[:10]} is left out: {e}")
                return None
            output.say(result.headline)
            return result

        found = bisect(commits, test)
    output.say(found.headline)
    output.result(found.to_dict())


def _report(
    result: "GateResult",
    output: Output,
    *,
    markdown: Path | None,
    junit: Path | None,
    html: Path | None,
) -> None:
    from foretune.tune.gate import texts
    from foretune.tune.gate.page import write_gate_page
    from foretune.tune.report.page import write_page

    output.say(texts.terminal_text(result))
    if markdown is not None:
        write_page(markdown, texts.markdown(result))
    if junit is not None:
        write_page(junit, texts.junit(result))
    if html is not None:
        write_gate_page(html, result)


def _track(result: "GateResult", output: Output) -> None:
    from foretune.tune.gate.history import track_gate

    output.say(f"tracked in {track_gate(result)}")


def _record(result: "GateResult", path: Path, output: Output) -> None:
    from foretune.tune.gate.history import record_runs

    n_rows = record_runs(path, result)
    output.say(f"{n_rows} rows appended to {path}")
