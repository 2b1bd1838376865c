"""Optional dependencies: imported where they are used, with a message that says how to get them."""

import importlib
from typing import Any

from foretune.errors import MissingExtra

EXTRA_OF = {"numba": "cpu", "llvmlite": "cpu", "triton": "gpu", "torch": "gpu"}
"""The extra that brings what files of kernels import."""


def require(module: str, extra: str, purpose: str) -> Any:
    """Import ``module`` and return it.

    Raises:
        MissingExtra: it is not installed; the message names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(module.partition(".")[0], extra, purpose) from None
