"""Foretune inside other tuners: their spaces, measurements and caches, Foretune's choices.

A tool is imported when its door is used.
"""

from typing import TYPE_CHECKING

from foretune.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.tune.doors.flashinfer import patch_flashinfer
    from foretune.tune.doors.helion import helion_autotuner
    from foretune.tune.doors.kernel_tuner import KernelTunerStrategy

__all__ = ["KernelTunerStrategy", "helion_autotuner", "patch_flashinfer"]

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(__name__)
