"""Any program as a kernel: knobs in its arguments, its environment, its files, or its build.

``{knob}`` is replaced by the knob's value; other braces are left alone. No shell is used unless
requested. Templates are filled and the build runs before a run, untimed. If all these files are
below ``{dir}``, a folder per configuration, this happens once. Otherwise configurations would
overwrite each other's files, so it is repeated for each run.
"""

import contextlib
import hashlib
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import psutil

from foretune.collect.wrapped.program_files import (
    ProgramFiles,
    counted_variables,
    find_program_files,
)
from foretune.collect.wrapped.source import substitute
from foretune.collect.wrapped.wrapped import CostOf, Restrictions, WrappedKernel
from foretune.errors import UsageError
from foretune.kernel import Clock, Inputs, Launch, SelfTimedLaunch, WrongResult
from foretune.problem import Problem
from foretune.redaction import is_secret, redact, redact_command
from foretune.space import Configuration
from foretune.support.identity import unique_digest
from foretune.values import Value

DIR = "dir"  # placeholder for the folder of a configuration
UNITS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}  # milliseconds per unit
MAX_SHOWN_CHARACTERS = 160  # maximum characters of a program's output in a message
ERROR_LINE = re.compile(r"\berror:|undefined reference")
"""Pattern of an error line of a compiler or linker."""


@dataclass(frozen=True)
class Program:
    """A program with knobs; its parts are the parameters of `foretune.tune_program`.

    ``{knob}`` may be anywhere in its words, its build, its environment and its templates.
    ``folder`` is the working directory, and ``limit_s`` the timeout of one run, build or comparison
    in seconds.
    """

    words: tuple[str, ...]
    build: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)
    time: str | None = None
    time_unit: Literal["ns", "us", "ms", "s"] = "ms"
    check: str | None = None
    compare: str = ""
    shell: bool = False
    sources: tuple[str, ...] = ()
    folder: str = "."
    limit_s: float = 60.0

    def __post_init__(self) -> None:
        for what, text in (("build", self.build), ("compare", self.compare)):
            try:
                shlex.split(text)
            except ValueError as e:
                raise UsageError(f"the {what} command {text!r} cannot be read: {e}") from e

    def texts(self) -> list[str]:
        """Return all texts that may contain knobs."""
        files = [_read(self._path(path)) for path in self.templates]
        paths = [*self.templates, *self.templates.values()]
        return [*self.words, self.build, self.compare, *self.environment.values(), *files, *paths]

    def files(self) -> ProgramFiles:
        """Return the files whose content identifies the work.

        Raises UsageError if a source is missing.
        """
        sources = [path for path in self.sources if not self._path(path).is_file()]
        if sources:
            raise UsageError(f"there is no file {self._path(sources[0])}")
        others = [*self.sources, *self.templates]
        words = [*self.words, *self.environment.values()]
        compared = find_program_files(shlex.split(self.compare), "", (), self.folder)
        found = find_program_files(words, self.build, others, self.folder)
        return ProgramFiles((*found.paths, *compared.paths), found.unknown)

    def shown_words(self) -> list[str]:
        """Return the program and its arguments without secrets."""
        return [redact(word, self._secrets) for word in redact_command(self._lines[0])[0]]

    def shown(self) -> str:
        """Return a full description of the program; neither it nor its hash reveals a secret."""
        environment = {n: "" if is_secret(n, t) else t for n, t in self.environment.items()}
        rest = replace(self, words=(), build="", compare="", environment=environment)
        texts = (repr(rest), self.build, self.compare)
        return "\n".join([repr(self.shown_words()), *(redact(t, self._secrets) for t in texts)])

    def decisive_line(self, output: str) -> str:
        """Return the most informative output line: the first compiler error, or the last line."""
        lines = redact(output, self._secrets).strip().splitlines()
        if not lines:
            return "it printed nothing"
        return repr(next(filter(ERROR_LINE.search, lines), lines[-1])[-MAX_SHOWN_CHARACTERS:])

    def describe_output(self, output: str) -> str:
        """Return the output's most informative line, and where it was printed."""
        lines = output.strip().splitlines()
        where = "it has " if any(map(ERROR_LINE.search, lines)) else "it ends with "
        return f"{where if lines else ''}{self.decisive_line(output)}"

    @property
    def _lines(self) -> list[Sequence[str]]:
        words = [" ".join(self.words)] if self.shell else self.words
        return [words, [self.build], [self.compare]]

    @cached_property
    def _secrets(self) -> set[str]:
        found = {t for n, t in self.environment.items() if is_secret(n, t)}
        return found.union(*(redact_command(line)[1] for line in self._lines))

    def _path(self, path: str) -> Path:
        return Path(self.folder, path)


class ProgramKernel(WrappedKernel):
    """A program as a kernel; ``scratch`` is the parent of the configurations' folders.

    Raises UsageError if a knob is unused, or a pattern, unit or template is invalid.
    """

    tolerance = 0.5
    runs_where_compared = False  # a program has a process of its own

    def __init__(
        self,
        program: Program,
        knobs: Mapping[str, Sequence[Value]],
        scratch: str | os.PathLike[str],
        *,
        restrictions: Restrictions = None,
        default: Mapping[str, Any] | None = None,
        name: str | None = None,
        cost: CostOf | None = None,
    ) -> None:
        if not program.words:
            raise UsageError("there is no program: write it after --")
        _check_patterns(program)
        texts = program.texts()
        for knob in knobs:
            if knob == DIR:
                raise UsageError(f"{DIR!r} is the folder of a configuration: rename that knob")
            if not any(f"{{{knob}}}" in text for text in texts):
                raise UsageError(
                    f"knob {knob!r} is used nowhere: write {{{knob}}} where it belongs, in the "
                    "program's arguments, --build, --env or a --template"
                )
        words = program.shown_words()
        files = program.files()
        digests = [f"{p.name} {hashlib.sha256(p.read_bytes()).hexdigest()}" for p in files.paths]
        variables = counted_variables({**os.environ, **program.environment})
        secrets = [n for n, text in variables.items() if is_secret(n, text)]
        settings = [f"{n}={text}" for n, text in variables.items() if n not in secrets]
        only_here = unique_digest() if files.unknown else ""
        code = "\n".join([program.shown(), *digests, *settings, only_here])
        named = name or Path(words[0].split()[0]).stem
        problem = {"command": " ".join(words)}
        super().__init__(named, knobs, restrictions, default, problem, code, cost)
        self.unreadable = files.unknown
        self.reports_own_time = True
        self.program = program
        self.scratch = str(scratch)

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return the state that runs share: the configuration whose files are staged."""
        return {"staged": {}}

    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Stage the program's files and return its launch."""
        return _ProgramLaunch(self.program, config, Path(self.scratch, config.id), inputs["staged"])

    def reference(self, inputs: Inputs) -> float:
        """Return the result of a correct run."""
        return 1.0


class _ProgramLaunch(SelfTimedLaunch):
    """Runs of one configuration. The first run is checked and also serves as warm-up."""

    is_one_run = True

    def __init__(
        self, program: Program, config: Configuration, folder: Path, staged: dict[str, str]
    ) -> None:
        self._program = program
        self._config = config
        self._values = {**config, DIR: str(folder)}
        self._folder = folder
        self._staged = staged
        self._is_checked = False
        outputs = [*program.templates.values(), *([program.build] if program.build else [])]
        self._has_separate_folders = all(f"{{{DIR}}}" in text for text in outputs)
        folder.mkdir(parents=True, exist_ok=True)
        self._stage()

    def __call__(self) -> float:
        """Run and check once; later calls return the same result."""
        if not self._is_checked:
            self._run()
            if self._program.compare:
                self._compare()
            self._is_checked = True
        return 1.0

    def sample_ms(self, clock: Clock, batch: int) -> float:
        return self._run()

    def _stage(self) -> None:
        """Make the files and the build of this configuration, unless they exist."""
        done = self._folder / ".staged"  # other processes of this search find it, too
        if self._has_separate_folders and done.exists():
            return
        if self._staged.get("") == self._config.id:
            return
        self._staged[""] = ""
        for source, target in self._program.templates.items():
            path = Path(self._program.folder, substitute(target, self._values))
            path.parent.mkdir(parents=True, exist_ok=True)
            text = substitute(_read(Path(self._program.folder, source)), self._values)
            path.write_text(text, encoding="utf-8")
        if self._program.build:
            self._run_command(self._command(self._program.build), "the build")
        if self._has_separate_folders:
            done.touch()
        else:
            self._staged[""] = self._config.id

    def _run(self) -> float:
        self._stage()
        words = self._command(self._program.words)
        start = time.perf_counter()
        output = self._run_command(words, "it")
        wall_ms = (time.perf_counter() - start) * 1e3
        if self._program.check and not re.search(self._program.check, output, re.MULTILINE):
            printed = self._program.describe_output(output)
            raise WrongResult(f"its output does not match {self._program.check!r}: {printed}")
        return wall_ms if self._program.time is None else self._parse_time(output)

    def _parse_time(self, output: str) -> float:
        assert self._program.time is not None
        found = re.findall(self._program.time, output, re.MULTILINE)
        if not found:
            printed = self._program.describe_output(output)
            raise ValueError(f"{self._program.time!r} finds no time in its output: {printed}")
        try:
            value = float(found[-1])
        except ValueError:
            raise ValueError(f"{self._program.time!r} finds {found[-1]!r}: not a number") from None
        return value * UNITS[self._program.time_unit]

    def _compare(self) -> None:
        command = self._command(self._program.compare)
        try:
            self._run_command(command, "the comparison")
        except RuntimeError as e:
            raise WrongResult(str(e)) from e

    def _command(self, command: str | Sequence[str]) -> list[str]:
        """Return the words of a command (a line, or words) with knobs."""
        if self._program.shell:
            quoted = {name: shlex.quote(str(value)) for name, value in self._values.items()}
            line = command if isinstance(command, str) else " ".join(command)
            text = substitute(line, quoted)
            return ["cmd", "/c", text] if sys.platform == "win32" else ["/bin/sh", "-c", text]
        words = shlex.split(command) if isinstance(command, str) else command
        return [substitute(word, self._values) for word in words]

    def _run_command(self, words: list[str], what: str) -> str:
        """Run a command and return its output, including standard error."""
        environment = {n: substitute(t, self._values) for n, t in self._program.environment.items()}
        try:
            process = subprocess.Popen(
                words,
                cwd=self._program.folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as e:
            raise RuntimeError(f"{what} cannot be started: {e}") from e
        limit_s = self._program.limit_s
        try:
            printed = process.communicate(timeout=None if limit_s == math.inf else limit_s)[0]
        except BaseException as e:
            _kill_tree(process)
            if isinstance(e, subprocess.TimeoutExpired):
                ended = "ended, and what it started holds its output open"
                state = ended if process.returncode == 0 else "is not done"
                raise TimeoutError(f"{what} {state} after {limit_s:g} s") from e
            raise
        output = printed.decode("utf-8", "replace")
        if process.returncode:
            shown = self._program.decisive_line(output)
            raise RuntimeError(f"{what} ends with exit code {process.returncode}: {shown}")
        return output


def _kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """Kill a program and its children, which may hold its output open."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    with process:  # closes its output, which a process that left its parent may hold open
        process.kill()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"template {path} cannot be read: {e}") from e


def _check_patterns(program: Program) -> None:
    if program.time_unit not in UNITS:
        raise UsageError(f"time unit {program.time_unit!r}: choose one of {', '.join(UNITS)}")
    for pattern, option in ((program.time, "--time"), (program.check, "--check")):
        try:
            groups = re.compile(pattern or "").groups
        except re.error as e:
            raise UsageError(f"{option} {pattern!r} is not a regular expression: {e}") from e
        if option == "--time" and pattern is not None and groups != 1:
            raise UsageError(f"--time {pattern!r}: put (parentheses) around the number only")
