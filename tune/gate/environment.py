"""An environment: a Python with one revision of a project, and the folder where it works."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretune.collect.comparison import DEFAULT_REPEATED

BASE = "base"
HEAD = "head"
AGAIN = DEFAULT_REPEATED
"""Roles of environments: the base's second build shows the noise."""
ROLES = (BASE, HEAD, AGAIN)


@dataclass(frozen=True)
class Environment:
    """A Python interpreter, and the folder where its programs start.

    ``label`` is the revision, version or path that the user gave.
    """

    python: Path
    folder: Path
    label: str

    def variables(self, hash_seed: int) -> dict[str, str]:
        """Return the variables of a process: the same ones in every environment but for paths."""
        variables = dict(os.environ)
        programs = self.python.parent
        variables["PATH"] = os.pathsep.join([str(programs), variables.get("PATH", os.defpath)])
        variables["PYTHONHASHSEED"] = str(hash_seed)
        variables.pop("PYTHONHOME", None)
        variables.pop("VIRTUAL_ENV", None)
        if (programs.parent / "pyvenv.cfg").is_file():
            variables["VIRTUAL_ENV"] = str(programs.parent)
        return variables


@dataclass(frozen=True)
class EnvironmentContents:
    """What an agent said of its environment.

    Attributes:
        python: implementation and version.
        packages: version by name of each installed distribution.
        files: files of modules that do not belong to Python, by module.
        hidden: top names of modules that are installed, but were loaded from elsewhere.
    """

    python: str
    packages: Mapping[str, str]
    files: Mapping[str, str]
    hidden: Sequence[str] = ()

    def changes_to(self, other: "EnvironmentContents") -> list[str]:
        """Return the differences to another environment in words: Python, then packages."""
        changes = []
        if self.python != other.python:
            changes.append(f"{self.python} → {other.python}")
        for name in sorted({*self.packages, *other.packages}):
            before = self.packages.get(name, "not installed")
            after = other.packages.get(name, "not installed")
            if before != after:
                changes.append(f"{name} {before} → {after}")
        return changes
