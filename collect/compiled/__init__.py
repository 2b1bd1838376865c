"""Triton kernels compiled for any target without a GPU, and static features of their code.

`get_target` finds a target. `compile_configs` compiles configurations in worker processes with a
time limit each. `FEATURES` documents the resulting ``static.<name>`` columns. Only
`foretune.collect.compiled.compiling` imports Triton, and it is imported when used.
"""
