"""What compiled code shows: Triton kernels compiled for any target, on a machine without a GPU.

`get_target` names what is compiled for, `compile_configs` compiles many configurations in worker
processes with a time limit each, `FEATURES` documents the ``static.<name>`` columns that come out.
What needs Triton is in `foretune.collect.compiled.compiling` and `.inspection`, imported when used.
"""

from foretune.collect.compiled.arguments import describe
from foretune.collect.compiled.compile_pool import CompileResult, compile_configs, precompile
from foretune.collect.compiled.feature_names import FEATURES
from foretune.collect.compiled.targets import Target, get_target

__all__ = [
    "FEATURES",
    "CompileResult",
    "Target",
    "compile_configs",
    "describe",
    "get_target",
    "precompile",
]
