"""Foretune: predict before you measure, verify before you trust.

Predicts how fast a kernel configuration will run and how much power it will draw, searches that
prediction, and measures only the few configurations that matter.

Names are imported when first used, so that ``import foretune`` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "Configuration": "foretune.space",
    "Cost": "foretune.kernel",
    "Device": "foretune.device",
    "ForetuneError": "foretune.errors",
    "Kernel": "foretune.kernel",
    "Measurement": "foretune.measurement",
    "Objective": "foretune.objective",
    "Predictor": "foretune.models",
    "Problem": "foretune.problem",
    "ProblemParameter": "foretune.problem",
    "RunLog": "foretune.datasets",
    "SearchSpace": "foretune.space",
    "Status": "foretune.measurement",
    "collect": "foretune.collect",
    "evaluate": "foretune.models",
    "get_kernel": "foretune.registry",
    "local_device": "foretune.collect",
    "read_runs": "foretune.datasets",
    "run_campaign": "foretune.tune",
    "train": "foretune.models",
    "tune": "foretune.tune",
    "write_runs": "foretune.datasets",
}

__version__ = "0.1.0"
__all__ = ["__version__", *sorted(_EXPORTS)]

if TYPE_CHECKING:
    from foretune.kernel import Cost as Cost

def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'foretune' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
