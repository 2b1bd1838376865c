"""User options of an import besides file and format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from foretune.errors import UsageError
from foretune.values import Value


@dataclass(frozen=True)
class Request:
    """Options of one import.

    Attributes:
        kernel: for formats with many kernels, the one to import; for others, the kernel's name.
        device: the device's name; replaces the name in the file.
        mapping: run-table column -> its source, for formats without fixed columns.
        constants: run-table column -> its value in every row.
    """

    kernel: str | None = None
    device: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Value] = field(default_factory=dict)

    def named_device(self, path: Path) -> str:
        """Return the given device, or raise `UsageError`."""
        if not self.device:
            raise UsageError(f"{path} does not name its device: give --device NAME")
        return self.device

    def named_kernel(self, path: Path) -> str:
        """Return the given kernel, or raise `UsageError`."""
        if not self.kernel:
            raise UsageError(f"{path} does not name its kernel: give --kernel NAME")
        return self.kernel
