"""Files that a source includes: their content is part of the code.

A C compiler lists them itself (`native.listed_headers`), for the macros of one configuration. The
text is searched, too: whatever the macros are, and for languages whose compilers list nothing.

Files that a compiler's options name count as well: sources, objects, libraries, and files with more
options (``@FILE``).
"""

import hashlib
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

INCLUDE = re.compile(
    r"(?:^[ \t]*#[ \t]*(?:include(?:_next)?|embed)|\.incbin)[ \t\\]*(?P<rest>.*)$", re.MULTILINE
)
QUOTED = re.compile(r'"([^"\n\\]+)\\?"')
ANGLED = re.compile(r"<([^>\n]+)>")
INCLUDE_OPTIONS = ("-I", "-isystem", "-iquote", "--include-path=")
"""Options that name a folder of headers, attached or as the next word."""
FOLDER_VARIABLES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "OBJC_INCLUDE_PATH")
"""Variables of the environment that name folders of headers."""
LIBRARY_VARIABLES = ("LIBRARY_PATH",)
LIBRARY_NAMES = ("lib{}.so", "lib{}.a", "lib{}.dylib")


@dataclass(frozen=True)
class IncludedFiles:
    """Files that were found, and the names of those that were not."""

    paths: tuple[Path, ...]
    missing: tuple[str, ...] = ()

    def digest(self) -> str:
        """Return a hash of all files' content."""
        content = hashlib.sha256()
        for path in sorted(set(self.paths)):
            content.update(hashlib.sha256(path.read_bytes()).digest())
        return content.hexdigest()[:16]


def find_included(
    texts: Iterable[str], known: Iterable[str], folders: Sequence[str | Path]
) -> IncludedFiles:
    """Return the files in ``folders`` that texts include, and those that they include in turn.

    ``known`` are names whose content counts already. A name in angle brackets that is in no folder
    is a header of the compiler, whose version counts.
    """
    found: dict[Path, None] = {}
    missing: dict[str, None] = {}
    given = set(known)
    pending: list[tuple[str, Path | None]] = [(text, None) for text in texts]
    while pending:
        text, beside = pending.pop()
        for rest in (match["rest"] for match in INCLUDE.finditer(text)):
            quoted = QUOTED.match(rest)
            angled = ANGLED.match(rest)
            if quoted is None and angled is None:  # a macro
                missing[rest.strip()] = None
                continue
            name = (quoted or angled)[1]  # type: ignore[index]
            if name in given:
                continue
            places = [*([beside] if beside is not None and quoted else []), *map(Path, folders)]
            path = next((p / name for p in places if (p / name).is_file()), None)
            if path is None:
                if quoted:
                    missing[name] = None
            elif path.resolve() not in found:
                found[path.resolve()] = None
                pending.append((path.read_text(encoding="utf-8", errors="replace"), path.parent))
    return IncludedFiles(tuple(found), tuple(missing))


def environment_folders(variables: Sequence[str] = FOLDER_VARIABLES) -> list[str]:
    """Return the folders that variables of the environment name."""
    texts = (os.environ.get(name, "") for name in variables)
    return [folder for text in texts for folder in text.split(os.pathsep) if folder]


def files_in_options(options: Sequence[str], folder: str | Path = ".") -> list[Path]:
    """Return the files that a compiler's options name, also in files of options."""
    words = _option_words(options, Path(folder))
    found = [Path(folder, word.removeprefix("@")) for word in words]
    library_folders = [word[2:] for word in words if word.startswith("-L")]
    library_folders += environment_folders(LIBRARY_VARIABLES)
    for word in words:
        if word.startswith("-l"):
            name = word[2:]
            names = [name[1:]] if name.startswith(":") else [n.format(name) for n in LIBRARY_NAMES]
            found += [Path(folder, place, n) for place in library_folders for n in names]
    return [path.resolve() for path in found if os.path.isfile(path)]


def _option_words(options: Sequence[str], folder: Path) -> list[str]:
    """Return the words of options, and those in the files that they name with ``@``."""
    pending = [word for option in options for word in option.split()]
    words: list[str] = []
    seen = set()
    while pending:
        word = pending.pop(0)
        words.append(word)
        path = folder / word[1:]
        if word.startswith("@") and path not in seen and os.path.isfile(path):
            seen.add(path)
            pending += shlex.split(path.read_text(encoding="utf-8", errors="replace"))
    return words


def option_folders(options: Sequence[str]) -> list[str]:
    """Return the folders of headers that a compiler's options name."""
    words = [word for option in options for word in option.split()]
    found = []
    for position, word in enumerate(words):
        for option in INCLUDE_OPTIONS:
            if word == option:
                found += words[position + 1 : position + 2]
            elif word.startswith(option):
                found.append(word[len(option) :])
    return found
