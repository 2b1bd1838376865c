"""What tuners tell about compiled code, as ``static.*`` columns."""

from collections.abc import Mapping
from typing import Any

NAMES = {
    "registerscount": "static.registers",
    "registers": "static.registers",
    "localmemorysize": "static.shared_bytes",  # OpenCL's word for a block's own memory
    "privatememorysize": "static.private_bytes",
    "constantmemorysize": "static.constant_bytes",
    "maxworkgroupsize": "static.max_threads",
}
"""KTT's name in lower case, without underscores -> our column."""


def static_columns(compiled: Mapping[str, Any] | None) -> dict[str, float]:
    """Return KTT's compilation data as run-table columns; none where there is none."""
    return {
        NAMES[key]: float(value)
        for name, value in (compiled or {}).items()
        if (key := name.replace("_", "").lower()) in NAMES and isinstance(value, (int, float))
    }
