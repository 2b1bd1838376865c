"""Foretune inside other tuners, with their spaces, measurements and caches.

A tool is imported when its integration is used. Servers configure Foretune by the environment:
`FLASHINFER_VARIABLE` and `TRITON_VARIABLE` are read when a server loads its plugins.
"""

import os
from collections.abc import Callable

from foretune.errors import UsageError, warn

FLASHINFER_VARIABLE = "FORETUNE_FLASHINFER"
"""Environment variable that sets the number of tactics that FlashInfer times per bucket."""
TRITON_VARIABLE = "FORETUNE_TRITON"
"""Environment variable that sets the number of configurations that are measured per problem of a
Triton kernel: by ``foretune warm-up``, never by the server."""


def patch_server() -> None:
    """Patch FlashInfer and Triton as the environment says; nothing if no variable is set.

    vLLM and SGLang call this in each of their processes, before they import their kernels. Errors
    become warnings, because the server must start.
    """
    _patch_if_set(FLASHINFER_VARIABLE, "FlashInfer", _patch_flashinfer)
    _patch_if_set(TRITON_VARIABLE, "Triton", _patch_triton)


def _patch_if_set(variable: str, tool: str, patch: Callable[[int], object]) -> None:
    """Patch a tool with the budget in an environment variable; warn if that fails."""
    budget = os.environ.get(variable)
    if not budget:
        return
    try:
        if not budget.isdecimal() or int(budget) < 1:
            raise UsageError(f"{variable}={budget}: give a number of measurements, e.g. 4")
        patch(int(budget))
    except Exception as e:
        warn(f"{tool} tunes without Foretune: {e}")


def _patch_flashinfer(budget: int) -> None:
    from foretune.tune.doors.flashinfer import patch_flashinfer

    patch_flashinfer(budget)


def _patch_triton(budget: int) -> None:
    """Let kernels take stored choices, else their default; a warm-up measures ``budget``."""
    from foretune.tune.triton.patching import patch_triton

    patch_triton(mode="serve", budget=budget, include_default=True, predictor=None)
