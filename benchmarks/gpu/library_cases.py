"""Kernels of other people's libraries, with problems: what `libraries.py` measures.

Each is called by the library's own function, which `library_calls` prepares.
"""

from dataclasses import dataclass

from library_calls import (
    Prepare,
    Sizes,
    prepare_dyt,
    prepare_gated_norm,
    prepare_gems_layer_norm,
    prepare_gems_rms_norm,
    prepare_gems_softmax_backward,
    prepare_gla_output,
    prepare_l2norm,
    prepare_moe_up,
    prepare_recompute_w_u,
    prepare_unsloth_forward,
)

LIBRARIES = ("fla", "liger", "flag_gems", "unsloth")


@dataclass(frozen=True)
class Case:
    """A kernel of a library.

    Attributes:
        library: its name.
        module: where the kernel is.
        kernel: the decorated kernel's name there.
        problems: sizes, in the order in which they are met.
        prepare: makes a call of the library's function.
    """

    library: str
    module: str
    kernel: str
    problems: list[Sizes]
    prepare: Prepare


CASES = [
    Case(
        library="fla",
        module="fla.modules.norm.fused_norm_gate",
        kernel="layer_norm_gated_fwd_kernel",
        problems=[{"T": 65536, "D": 128}, {"T": 32768, "D": 256}, {"T": 65536, "D": 64}],
        prepare=prepare_gated_norm,
    ),
    Case(
        library="liger",
        module="liger_kernel.ops.dyt",
        kernel="_dyt_fwd_kernel",
        problems=[{"M": 4096, "N": 4096}, {"M": 4096, "N": 8192}],
        prepare=prepare_dyt,
    ),
    Case(
        library="flag_gems",
        module="flag_gems.ops.rms_norm",
        kernel="rms_norm_loop_kernel",
        problems=[{"M": 4096, "N": 8192}, {"M": 2048, "N": 5120}],
        prepare=prepare_gems_rms_norm,
    ),
    Case(
        library="fla",
        module="fla.ops.gated_delta_rule.wy_fast",
        kernel="recompute_w_u_fwd_kernel",
        problems=[
            {"B": 2, "T": 4096, "H": 16, "K": 128, "V": 128},
            {"B": 2, "T": 4096, "H": 8, "K": 128, "V": 256},
            {"B": 2, "T": 4096, "H": 16, "K": 64, "V": 64},
        ],
        prepare=prepare_recompute_w_u,
    ),
    Case(
        library="flag_gems",
        module="flag_gems.ops.softmax",
        kernel="softmax_backward_kernel_inner",
        problems=[{"M": 4096, "N": 2048}, {"M": 2048, "N": 8192}, {"M": 16384, "N": 1024}],
        prepare=prepare_gems_softmax_backward,
    ),
    Case(
        library="liger",
        module="liger_kernel.ops.fused_moe_kernels",
        kernel="_fused_up_proj_swiglu_kernel",
        problems=[
            {"rows": 2048, "H": 2048, "I": 1024, "E": 8},
            {"rows": 4096, "H": 1024, "I": 2048, "E": 16},
        ],
        prepare=prepare_moe_up,
    ),
    Case(
        library="unsloth",
        module="unsloth.kernels.moe.grouped_gemm.interface",
        kernel="_autotuned_grouped_gemm_forward_kernel",
        problems=[{"rows": 4096, "K": 2048, "N": 1536, "E": 8}],
        prepare=prepare_unsloth_forward,
    ),
    Case(
        library="fla",
        module="fla.ops.gla.chunk",
        kernel="chunk_gla_fwd_kernel_o",
        problems=[
            {"B": 2, "T": 4096, "H": 8, "K": 128, "V": 256},
            {"B": 4, "T": 2048, "H": 16, "K": 64, "V": 128},
        ],
        prepare=prepare_gla_output,
    ),
    Case(
        library="flag_gems",
        module="flag_gems.ops.layernorm",
        kernel="layer_norm_loop_kernel",
        problems=[{"M": 4096, "N": 8192}, {"M": 2048, "N": 12288}],
        prepare=prepare_gems_layer_norm,
    ),
    Case(
        library="fla",
        module="fla.modules.norm.l2norm",
        kernel="l2norm_fwd_kernel",
        problems=[{"T": 65536, "D": 128}, {"T": 65536, "D": 64}],
        prepare=prepare_l2norm,
    ),
]
"""In this order, so that an early stop leaves something of each library."""
