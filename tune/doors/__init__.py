"""Foretune inside other tuners, with their spaces, measurements and caches.

A tool is imported when its integration is used.
"""

import os

from foretune.errors import UsageError, warn

VARIABLE = "FORETUNE_FLASHINFER"  # environment variable that sets the number of tactics per bucket


def patch_server() -> None:
    """Patch FlashInfer if `VARIABLE` is set; vLLM and SGLang call this in each of their processes.

    Errors become warnings, because the server must start.
    """
    if not (budget := os.environ.get(VARIABLE)):
        return
    try:
        if not budget.isdecimal():
            raise UsageError(f"{VARIABLE}={budget}: give the number of tactics per bucket, e.g. 4")
        from foretune.tune.doors.flashinfer import patch_flashinfer

        patch_flashinfer(int(budget))
    except Exception as e:
        warn(f"FlashInfer tunes without Foretune: {e}")
