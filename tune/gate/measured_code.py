"""Whose code do the environments run? Refuses gates in which both revisions would run the same.

All revisions run one commit's copy of the benchmarks' folder. If measured code lies in it, too, no
benchmark could differ. A helper of the benchmarks looks like measured code: both are files that
differ between the revisions, and that the benchmarks load from this folder. Two rules tell them
apart. It is measured code

- if the benchmarks load no other file of the project, from outside of the folder: something must be
  measured;
- if it belongs to a package of which other modules are loaded from where it was installed.

What is neither is taken for a helper, and named in the result. The user can say what a file is.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from foretune.errors import MeasurementError
from foretune.tune.gate.environment import BASE, HEAD, Environment, EnvironmentContents

PACKAGE_FOLDERS = ("site-packages", "dist-packages")
"""Folders of installed packages: two environments may share some of them."""


@dataclass(frozen=True)
class CopiedFiles:
    """The benchmarks of one commit, of which the checkouts of all revisions have a copy.

    Paths are relative to the repository.

    Attributes:
        path: the benchmarks' file or folder.
        changed: files of ``path`` that both revisions have, and that differ between them.
        tracked: all files of the commit.
    """

    path: PurePosixPath
    changed: frozenset[str]
    tracked: frozenset[str]


def require_own_code(
    environments: Mapping[str, Environment],
    contents: Mapping[str, EnvironmentContents],
    *,
    benchmarks: Sequence[str],
    suite_path: str,
    copied: CopiedFiles | None,
    helpers: Sequence[str],
) -> list[str]:
    """Raise MeasurementError if both revisions would run the same code; else return notes.

    Args:
        environments: those of base and head.
        contents: what their processes have loaded; if files are copied, after the benchmarks ran,
            because some import what they measure when they run.
        benchmarks: names of benchmarks, which begin with a file, relative to the suite.
        suite_path: file or folder of the benchmarks in the head's environment; empty without one.
        copied: the files that all revisions have as one commit has them; None if none are copied.
        helpers: files and folders that belong to the benchmarks, relative to the environments'
            folder.
    """
    if copied is not None:
        # Each revision has its own environment and checkout, and one copy of the benchmarks.
        return _require_own_revision(
            environments[HEAD], contents[HEAD], _files_of(benchmarks), copied, helpers
        )
    _require_other_files(environments, contents, benchmarks, suite_path, helpers)
    return []


def _require_own_revision(
    environment: Environment,
    contents: EnvironmentContents,
    benchmark_files: set[str],
    copied: CopiedFiles,
    helpers: Sequence[str],
) -> list[str]:
    """Apply the two rules to the changed files that were loaded from the copy."""
    loaded = {Path(file) for file in contents.files.values()}
    changed = sorted(
        path
        for path in copied.changed
        if (environment.folder / path).resolve() in loaded and not _is_within(path, helpers)
    )
    if not changed:
        return []

    # Of the project's files that were loaded from elsewhere, each revision has its own.
    in_checkout = _files_in_checkout(environment, loaded)
    is_other_loaded = any(not _is_within(path, [copied.path]) for path in in_checkout)
    installed_packages = set(_installed_packages(loaded, copied.tracked))
    is_other_loaded |= _is_any_installed_from_folder(loaded)

    # A file with benchmarks is measured only if nothing else can be.
    folder = copied.path if (environment.folder / copied.path).is_dir() else copied.path.parent
    others = [
        path
        for path in changed
        if not _is_benchmark(PurePosixPath(path).relative_to(folder), benchmark_files)
    ]
    if not is_other_loaded and not installed_packages:
        raise MeasurementError(_explain_copy((others or changed)[0], copied.path))
    copied_packages = [p for p in installed_packages if p and _is_within(p, [copied.path])]
    for path in others:
        if _is_within(path, copied_packages):
            raise MeasurementError(_explain_copy(path, copied.path))
    return [f"{path} differs; all revisions ran one copy" for path in others]


def _explain_copy(path: str, benchmarks: PurePosixPath) -> str:
    return (
        f"{path} differs between the revisions, but both would run the same copy, because it lies "
        f"among the benchmarks ({benchmarks}): give --own {path} if it is what is measured, or "
        f"--helper {path} if it belongs to the benchmarks"
    )


def _files_in_checkout(environment: Environment, loaded: set[Path]) -> Iterator[str]:
    """Yield the loaded files of a checkout, relative to it; packages installed in it are none."""
    checkout = environment.folder.resolve()
    for file in loaded:
        if file.is_relative_to(checkout) and not set(PACKAGE_FOLDERS) & set(file.parts):
            yield file.relative_to(checkout).as_posix()


def _installed_packages(loaded: set[Path], tracked: frozenset[str]) -> Iterator[str]:
    """Yield, for each loaded file that was installed from the repository, its top package there.

    It is empty for a module outside of packages. Whatever installs a project, it keeps the paths
    below the top package: ``src/lib/core.py`` becomes ``site-packages/lib/core.py``.
    """
    paths_of_name: dict[str, list[str]] = {}
    for path in tracked:
        paths_of_name.setdefault(PurePosixPath(path).name, []).append(path)
    for file in loaded:
        places = [number for number, part in enumerate(file.parts) if part in PACKAGE_FOLDERS]
        if not places:
            continue
        parts = file.parts[places[-1] + 1 :]
        installed = "/".join(parts)
        for path in paths_of_name.get(file.name, []):
            if path == installed or path.endswith(f"/{installed}"):
                above = len(parts) - 1
                yield PurePosixPath(path).parents[above - 1].as_posix() if above else ""


def _is_any_installed_from_folder(loaded: set[Path]) -> bool:
    """Whether a file belongs to what was installed from a folder, such as a checkout (PEP 610).

    Compiled packages may have no file of the repository.
    """
    names_of_site: dict[Path, set[str]] = {}
    for file in loaded:
        places = [number for number, part in enumerate(file.parts) if part in PACKAGE_FOLDERS]
        if not places:
            continue
        site = Path(*file.parts[: places[-1] + 1])
        if site not in names_of_site:
            names_of_site[site] = _names_installed_from_folders(site)
        if file.relative_to(site).parts[0] in names_of_site[site]:
            return True
    return False


def _names_installed_from_folders(site: Path) -> set[str]:
    """Return the files and folders in ``site-packages`` that were installed from folders."""
    names = set()
    for origin in site.glob("*.dist-info/direct_url.json"):
        try:
            is_folder = "dir_info" in json.loads(origin.read_text(encoding="utf-8"))
            records = (origin.parent / "RECORD").read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue  # an unusual installer: the paths of its files tell
        if is_folder:
            names |= {row[0].partition("/")[0] for row in csv.reader(records.splitlines()) if row}
    return names


def _require_other_files(
    environments: Mapping[str, Environment],
    contents: Mapping[str, EnvironmentContents],
    benchmarks: Sequence[str],
    suite_path: str,
    helpers: Sequence[str],
) -> None:
    """Raise MeasurementError if both environments load the same files: equal, but not compared.

    One interpreter, given twice, shows the noise on purpose; two versions of Python differ.
    """
    base = contents[BASE]
    head = contents[HEAD]
    if environments[BASE].python == environments[HEAD].python or base.python != head.python:
        return

    # The benchmarks themselves may be the same files, but must not hide what was installed.
    suite = Path(suite_path).resolve() if suite_path else None
    in_suite = {
        name: file
        for name, file in head.files.items()
        if suite is not None and Path(file).is_relative_to(suite)
    }
    files = {name: file for name, file in head.files.items() if name not in in_suite}
    benchmark_files = _files_of(benchmarks)
    for name, file in in_suite.items():
        assert suite is not None
        is_hiding = name.partition(".")[0] in head.hidden
        if not is_hiding or _is_benchmark(Path(file).relative_to(suite), benchmark_files):
            continue
        place = Path(file)
        here = environments[HEAD].folder.resolve()
        path = place.relative_to(here).as_posix() if place.is_relative_to(here) else file
        if not _is_within(path, helpers):
            raise MeasurementError(
                f"both base and head load {path} from the benchmarks' folder instead of the "
                f"installed {name.partition('.')[0]}: give a folder with benchmarks only, or "
                f"--helper {path} if it belongs to them"
            )

    # Two environments may share installed packages, as long as some other module differs. A shared
    # file outside of them is the project's own.
    same = [file for name, file in files.items() if base.files.get(name) == file]
    same_own = [file for file in same if not set(PACKAGE_FOLDERS) & set(Path(file).parts)]
    some_differ = any(base.files.get(name) not in (None, file) for name, file in files.items())
    if same_own or (same and not some_differ):
        example = same_own[0] if same_own else same[0]
        raise MeasurementError(
            f"base and head load the same files, such as {example}, so both would run the same "
            "code: install each revision in its environment, and keep the project's own folder "
            "off the path (PYTHONPATH)"
        )


def _files_of(benchmarks: Sequence[str]) -> set[str]:
    """Return the files that have benchmarks; commands and imports have none."""
    return {name.partition("::")[0] for name in benchmarks if "::" in name}


def _is_benchmark(path: PurePosixPath | Path, benchmark_files: set[str]) -> bool:
    """Whether a file, relative to the suite, holds benchmarks or sets them up."""
    return path.as_posix() in benchmark_files or path.name == "conftest.py"


def _is_within(path: str, parents: "Sequence[str | PurePosixPath]") -> bool:
    return any(PurePosixPath(path).is_relative_to(parent) for parent in parents)
