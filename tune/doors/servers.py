"""What serving engines call in each of their processes: vLLM and SGLang find it as a plugin."""

import os
import warnings

from foretune.errors import ForetuneWarning, UsageError

VARIABLE = "FORETUNE_FLASHINFER"
"""Environment variable with the number of tactics per bucket."""


def patch_server() -> None:
    """Patch FlashInfer if `VARIABLE` is set; errors are warnings, as the server must start."""
    if not (budget := os.environ.get(VARIABLE)):
        return
    try:
        if not budget.isdecimal():
            raise UsageError(f"{VARIABLE}={budget}: give the number of tactics per bucket, e.g. 4")
        from foretune.tune.doors.flashinfer import patch_flashinfer

        patch_flashinfer(int(budget))
    except Exception as e:
        warnings.warn(f"FlashInfer tunes without Foretune: {e}", ForetuneWarning, stacklevel=2)
