"""Operators of language models in torch, by the kernel's name in measured tables."""

from foretune.collect.torch_operators import attention, experts, products, row_operations
from foretune.collect.torch_operators.operator_class import OperatorClass

PRODUCTS = OperatorClass(
    cannot_run=products.cannot_run,
    memory_bytes=products.memory_bytes,
    build=products.build,
)
ATTENTION = OperatorClass(
    cannot_run=attention.cannot_run,
    memory_bytes=attention.memory_bytes,
    build=attention.build,
)
EXPERTS = OperatorClass(
    cannot_run=experts.cannot_run,
    memory_bytes=experts.memory_bytes,
    build=experts.build,
)
ROW_OPERATIONS = OperatorClass(
    cannot_run=row_operations.cannot_run,
    memory_bytes=row_operations.memory_bytes,
    build=row_operations.build,
)
CLASSES = {
    "gemm": PRODUCTS,
    "attention_prefill": ATTENTION,
    "attention_decode": ATTENTION,
    "moe": EXPERTS,
    "norm": ROW_OPERATIONS,
    "elementwise": ROW_OPERATIONS,
}
"""Kernel of a measured table -> how to run its operators."""
