"""What a correction was trained on, and with which versions: it says what it can be trusted for."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from foretune.version import __version__

PACKAGES = ("aiconfigurator-core", "aisimulate", "xgboost", "xgboost-cpu")
"""Packages that what was learned follows from: measured operators, boosted trees."""


@dataclass(frozen=True)
class Origin:
    """Where something learned comes from.

    Attributes:
        file: the name of the table of measured deployments, without its folder.
        rows: deployments of it that were learned from.
        versions: of Foretune and of packages that matter; those absent are left out.
    """

    file: str = ""
    rows: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def current(cls, file: str, rows: int) -> "Origin":
        """Return that of what is learned here and now."""
        versions = {"foretune": __version__}
        for name in PACKAGES:
            try:
                versions[name] = version(name)
            except PackageNotFoundError:
                continue
        return cls(file, rows, versions)

    def to_json(self) -> dict[str, Any]:
        """Return plain values: the arguments of the constructor."""
        return asdict(self)
