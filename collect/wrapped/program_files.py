"""Files that decide what a program computes: their content identifies the work.

- the program that runs, found in PATH, and the script or module that an interpreter runs;
- every file that a word names, also as ``--option=FILE``;
- the modules that a Python script imports from its folder, the headers that a source includes;
- what describes a build: the sources that it names, a ``Makefile``, a ``CMakeLists.txt``.

Files that the build itself makes do not count: their sources do.
"""

import ast
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretune.collect.wrapped.included_files import (
    environment_folders,
    files_in_options,
    find_included,
    option_folders,
)

BUILD_FILES = {
    "make": ("Makefile", "makefile", "GNUmakefile"),
    "gmake": ("Makefile", "makefile", "GNUmakefile"),
    "ninja": ("build.ninja",),
    "cmake": ("CMakeLists.txt",),
    "meson": ("meson.build",),
    "cargo": ("Cargo.toml", "Cargo.lock"),
}
"""Tools whose words do not name the sources -> the files that describe their builds."""
SOURCE_SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".hip", ".cl", ".h", ".hh", ".hpp")
COUNTED_VARIABLES = re.compile(
    r"(OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMBA|MALLOC|GLIBC|CUDA|HIP|ROCR|PYTHON)_\w+"
    r"|LD_PRELOAD|LD_LIBRARY_PATH|LIBRARY_PATH|PYTHONPATH"
    r"|CC|CXX|CPATH|C_INCLUDE_PATH|CPLUS_INCLUDE_PATH|(C|CXX|CPP|LD|F|MAKE|RUST)FLAGS"
)
"""Variables of the environment that change what a program runs, or how fast."""
IGNORED_VARIABLES = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONHASHSEED")
SHELL_SUFFIXES = (".sh", ".bash", ".zsh")
MAX_FIRST_LINE = 256
_SHELL = re.compile(rb"#!.*\b(sh|bash|zsh|dash)\b")
_SEPARATORS = re.compile(r"[\s;|&<>(),]+")
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")


@dataclass(frozen=True)
class ProgramFiles:
    """Files whose content counts, and what could not be found."""

    paths: tuple[Path, ...]
    unknown: tuple[str, ...] = ()


def find_program_files(
    words: Sequence[str], build: str, others: Sequence[str], folder: str
) -> ProgramFiles:
    """Return the files of a program; ``others`` are files that are known to count.

    ``words`` is the command, ``build`` the command that builds it.
    """
    run_words = _plain_words(words)
    build_words = _plain_words(shlex.split(build))
    made = {os.path.normpath(w) for w in run_words} & {os.path.normpath(w) for w in build_words}

    named = [w for w in (*run_words, *build_words) if os.path.normpath(w) not in made]
    found = {path.resolve(): None for path in _existing(named, folder)}
    found.update({Path(folder, other).resolve(): None for other in others})
    if build:  # a binary here may be what the build made
        found = {path: None for path in found if path in _sources(found) or not _is_binary(path)}
    found.update(dict.fromkeys(_programs(run_words, folder, is_built=bool(build))))
    found.update(dict.fromkeys(_module_files(run_words, folder)))

    tools = [BUILD_FILES.get(Path(word).name, ()) for word in build_words]
    found.update({path.resolve(): None for names in tools for path in _existing(names, folder)})
    found.update(dict.fromkeys(_options_and_libraries(build, folder)))
    found.update(dict.fromkeys(_read_by(list(found), [*run_words, *build_words], folder)))
    unknown: tuple[str, ...] = ()
    if any(tools) and not others:
        unknown = (f"the sources of the build {build!r} (name them with sources=)",)
    return ProgramFiles(tuple(found), unknown)


def counted_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that count."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if COUNTED_VARIABLES.fullmatch(name) and name not in IGNORED_VARIABLES
    }


def _plain_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command, those of a shell's line, and the values of options."""
    found = []
    for word in words:
        for part in filter(None, [word, *_SEPARATORS.split(word)]):
            text = part.strip("'\"").removeprefix("@")
            found += [text, text.partition("=")[2]] if "=" in text else [text]
    return [word for word in dict.fromkeys(found) if word]


def _existing(names: Sequence[str], folder: str) -> Iterator[Path]:
    for name in names:
        path = Path(folder, name)
        if os.path.isfile(path):  # a word may be too long for a path, where `is_file` raises
            yield path


def _programs(words: Sequence[str], folder: str, is_built: bool) -> Iterator[Path]:
    """Yield the program that runs; a built one counts by its sources."""
    if not words:
        return
    path = shutil.which(words[0])
    is_local = os.sep in words[0] and os.path.isfile(Path(folder, words[0]))
    if path and not is_local:
        yield Path(path).resolve()
    elif is_local and not is_built:
        yield Path(folder, words[0]).resolve()


def _module_files(words: Sequence[str], folder: str) -> Iterator[Path]:
    """Yield the files of ``python -m MODULE`` or ``-c CODE``, if they are in the folder."""
    if not any(_PYTHON.fullmatch(Path(word).name) for word in words):
        return
    if "-m" in words[:-1]:
        base = Path(folder, *words[words.index("-m") + 1].split("."))
        candidates = (base.with_suffix(".py"), base / "__main__.py")
        yield from (path.resolve() for path in candidates if path.is_file())
    if "-c" in words[:-1]:
        code = words[words.index("-c") + 1].encode()
        for name in _imported_names(code):
            yield from _files_of_module(name, [Path(folder)])


def _read_by(paths: Sequence[Path], words: Sequence[str], folder: str) -> Iterator[Path]:
    """Yield the files that scripts import, and that sources include."""
    header_folders = [*option_folders(words), *environment_folders()]
    headers = [str(Path(folder, name)) for name in header_folders]
    modules = environment_folders(["PYTHONPATH"])
    in_scripts = [
        named
        for path in paths
        if _is_shell_script(path)
        for named in _named_in_script(path, folder)
    ]
    yield from in_scripts
    for path in (*paths, *in_scripts):
        if path.suffix == ".py":
            roots = [path.parent, Path(folder).resolve(), *(Path(m).resolve() for m in modules)]
            yield from _imported_files(path, roots)
        elif path.suffix in SOURCE_SUFFIXES:
            text = path.read_text(encoding="utf-8", errors="replace")
            yield from find_included([text], (), [path.parent, *headers]).paths


def _options_and_libraries(build: str, folder: str) -> list[Path]:
    """Return the files of options, and the libraries, that a build names."""
    options = [word for word in shlex.split(build) if word.startswith(("@", "-L", "-l"))]
    return files_in_options(options, folder)


def _is_shell_script(path: Path) -> bool:
    with path.open("rb") as file:
        first_line = file.read(MAX_FIRST_LINE).partition(b"\n")[0]
    return path.suffix in SHELL_SUFFIXES or bool(_SHELL.match(first_line))


def _named_in_script(script: Path, folder: str) -> Iterator[Path]:
    """Yield the files that the words of a shell script name, and the scripts among them in turn."""
    seen = {script}
    pending = [script]
    while pending:
        text = pending.pop().read_text(encoding="utf-8", errors="replace")
        for path in _existing(_plain_words(text.splitlines()), folder):
            resolved = path.resolve()
            if resolved not in seen:
                seen.add(resolved)
                yield resolved
                if _is_shell_script(resolved):
                    pending.append(resolved)


def _imported_files(script: Path, roots: Sequence[Path]) -> Iterator[Path]:
    """Yield the files in ``roots`` that a script imports, and that they import in turn."""
    seen = {script}
    pending = [script]
    while pending:
        for name in _imported_names(pending.pop().read_bytes()):
            for path in _files_of_module(name, roots):
                if path not in seen:
                    seen.add(path)
                    pending.append(path)
                    yield path


def _imported_names(code: bytes) -> Iterator[str]:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):  # the run reports it
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            yield base
            yield from (f"{base}.{alias.name}".strip(".") for alias in node.names)


def _files_of_module(name: str, roots: Sequence[Path]) -> Iterator[Path]:
    """Yield the files of a module and of the packages that hold it."""
    parts = name.split(".") if name else []
    for root in roots:
        for length in range(1, len(parts) + 1):
            base = root.joinpath(*parts[:length])
            for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
                if path.is_file():
                    yield path.resolve()


def _sources(paths: Mapping[Path, None]) -> set[Path]:
    return {path for path in paths if path.suffix in SOURCE_SUFFIXES}


def _is_binary(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" in file.read(1024)
