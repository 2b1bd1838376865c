"""What somebody who imports may say beyond the file and its format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from foretune.errors import UsageError
from foretune.values import Value


@dataclass(frozen=True)
class Request:
    """Options of one import.

    Attributes:
        kernel: formats that hold many kernels import only this one; formats that hold one call
            it this.
        device: name of the device, for formats that do not say it; it replaces what they say.
        mapping: run-table column -> where its values come from, for formats that leave it open.
        constants: run-table column -> its value in every row.
    """

    kernel: str | None = None
    device: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Value] = field(default_factory=dict)

    def named_device(self, path: Path) -> str:
        """Return the device given.

        Raises:
            UsageError: none was, and ``path`` does not say it.
        """
        if not self.device:
            raise UsageError(f"{path} does not say which device it is from: give --device NAME")
        return self.device

    def named_kernel(self, path: Path) -> str:
        """Return the kernel given.

        Raises:
            UsageError: none was, and ``path`` does not say it.
        """
        if not self.kernel:
            raise UsageError(f"{path} does not say which kernel it is of: give --kernel NAME")
        return self.kernel
