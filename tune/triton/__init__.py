"""`@foretune.autotune`: predict every configuration, measure a few, store the choice.

Triton is imported when a kernel is decorated, not before.
"""

from foretune.tune.triton.decorator import autotune
from foretune.tune.triton.inductor import patch_inductor
from foretune.tune.triton.listener import listen
from foretune.tune.triton.options import Options
from foretune.tune.triton.patching import patch_triton

__all__ = ["Options", "autotune", "listen", "patch_inductor", "patch_triton"]
