"""Training data and package versions of a correction."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from foretune.version import __version__

PACKAGES = ("aiconfigurator-core", "aisimulate", "xgboost", "xgboost-cpu")
"""Packages that determine a correction: measured operators and boosted trees."""


@dataclass(frozen=True)
class Origin:
    """Training data and package versions of a correction.

    Attributes:
        file: the training table's name, without its folder.
        rows: number of training rows.
        versions: of Foretune and the relevant packages; missing packages are left out.
    """

    file: str = ""
    rows: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def current(cls, file: str, rows: int) -> "Origin":
        """Return the origin of a correction trained now."""
        versions = {"foretune": __version__}
        for name in PACKAGES:
            try:
                versions[name] = version(name)
            except PackageNotFoundError:
                continue
        return cls(file, rows, versions)

    def to_json(self) -> dict[str, Any]:
        """Return plain values: the constructor's arguments."""
        return asdict(self)
