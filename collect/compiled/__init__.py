"""Triton kernels compiled for any target without a GPU, and static features of their code.

`get_target` finds a target. `compile_configs` compiles configurations in worker processes with a
time limit each. `FEATURES` documents the resulting ``static.<name>`` columns. Only
`foretune.collect.compiled.compiling` imports Triton, and it is imported when used.
"""

from foretune.collect.compiled.arguments import describe
from foretune.collect.compiled.compile_pool import CompileResult, compile_configs
from foretune.collect.compiled.gpu_targets import Target, get_target
from foretune.collect.compiled.static_features import FEATURES

__all__ = ["FEATURES", "CompileResult", "Target", "compile_configs", "describe", "get_target"]
