"""What the judge needs to know about a task."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foretune.collect.isolated_implementation import Code
from foretune.errors import UsageError
from foretune.problem import Problem

SIGNATURE_SUFFIX = ".sig"
RECEIPT_MARK = b'"format": "foretune-receipt/'
"""A receipt begins with this, after a brace."""


class TaskError(UsageError):
    """A folder is no task, or a part of it is missing or ambiguous."""


@dataclass(frozen=True)
class Task:
    """A candidate, a reference, and the inputs on which they are compared.

    Attributes:
        form: how the task is written: ``models``, ``flashinfer-trace`` or ``functions``.
        folder: where its files are.
        files: those files whose content may decide the verdict: all of a folder, or the files of
            functions with the modules beside them that they import.
        problems: parameters of ``inputs``, at least one.
        one_shape: the candidate is checked on one shape only, because no other is known.
    """

    form: str
    folder: Path
    candidate: Code
    reference: Code
    inputs: Code
    problems: tuple[Problem, ...]
    files: tuple[Path, ...] = field(default=())

    @property
    def one_shape(self) -> bool:
        """Whether nothing shows that the candidate is correct for other shapes."""
        return len(self.problems) == 1

    @property
    def functions(self) -> dict[str, str]:
        """Names of candidate, reference and inputs by role; none where the form determines them."""
        codes = {"candidate": self.candidate, "reference": self.reference, "inputs": self.inputs}
        return {
            role: code.rpartition(":")[2] for role, code in codes.items() if isinstance(code, str)
        }

    def file_hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each file, by its path in the folder."""
        return {
            file.relative_to(self.folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(self.files)
        }


def files_in(folder: Path) -> tuple[Path, ...]:
    """Return all files of a task's folder that its code may read.

    Hidden files, caches, receipts and their signatures are none.
    """
    return tuple(file for file in sorted(folder.rglob("*")) if _may_be_read(file, folder))


def _may_be_read(file: Path, folder: Path) -> bool:
    parts = file.relative_to(folder).parts
    if any(part.startswith(".") or part == "__pycache__" for part in parts):
        return False
    if not file.is_file() or file.suffix == SIGNATURE_SUFFIX:
        return False
    with file.open("rb") as content:
        return RECEIPT_MARK not in content.read(100)


def only_one(what: str, found: Sequence[str], place: Path, advice: str) -> str:
    """Return the only name that was found; TaskError if there is none, or more than one."""
    if not found:
        raise TaskError(f"{place} has no {what}: {advice}")
    if len(found) > 1:
        raise TaskError(f"{place} has {len(found)} {what}s, {', '.join(found)}: {advice}")
    return found[0]
