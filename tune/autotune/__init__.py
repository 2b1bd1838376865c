"""`@foretune.autotune`: predict every configuration, measure a few, remember the result.

Triton is imported when a kernel is decorated, not before.
"""

from foretune.tune.autotune.decorator import autotune, patch_triton
from foretune.tune.autotune.listening import listen
from foretune.tune.autotune.options import Options

__all__ = ["Options", "autotune", "listen", "patch_triton"]
