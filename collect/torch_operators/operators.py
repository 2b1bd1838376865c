"""Operators of language models in torch, by the kernel's name in measured tables."""

from foretune.collect.torch_operators.attention import ATTENTION
from foretune.collect.torch_operators.experts import EXPERTS
from foretune.collect.torch_operators.products import PRODUCTS
from foretune.collect.torch_operators.row_operations import ROW_OPERATIONS

CLASSES = {
    "gemm": PRODUCTS,
    "attention_prefill": ATTENTION,
    "attention_decode": ATTENTION,
    "moe": EXPERTS,
    "norm": ROW_OPERATIONS,
    "elementwise": ROW_OPERATIONS,
}
