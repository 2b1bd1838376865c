"""Operators that one can ask about: their sizes, and other names of both."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foretune.errors import UnknownName
from foretune.problem import ProblemParameter

MAX_SIZE = 2**40
"""Largest size of a dimension, and of a message in bytes."""


@dataclass(frozen=True, kw_only=True)
class OperatorSpec:
    """An operator that can be asked about.

    Attributes:
        kernel: its name in run tables.
        sizes: what describes one call.
        load: the size that grows with the batch.
        aliases: other name of a size -> its name.
        formats: whether it computes in a format that one can choose.
        cache: whether it reads a cache, which may have another format.
        between_devices: whether it is an exchange between devices.
    """

    kernel: str
    sizes: tuple[ProblemParameter, ...]
    load: str
    aliases: Mapping[str, str] = field(default_factory=dict)
    formats: bool = True
    cache: bool = False
    between_devices: bool = False


def operator_name(name: str, sizes: Mapping[str, Any] | None = None) -> str:
    """Return the operator that a user names; raises UnknownName.

    ``attention`` and ``mla`` are decoded if ``sizes`` have a ``kv_len``, else prefilled.
    """
    normalized = name.lower().replace("-", "_")
    if normalized in PHASED:
        prefill, decode = PHASED[normalized]
        is_decode = "kv_len" in (sizes or {})
        return decode if is_decode else prefill
    operator = OTHER_NAMES.get(normalized, normalized)
    if operator not in OPERATORS:
        raise UnknownName("operator", name, [*OPERATORS, *PHASED, *OTHER_NAMES])
    return operator


def _size(name: str, default: int | None = None, minimum: int = 1) -> ProblemParameter:
    return ProblemParameter(name, default=default, minimum=minimum, maximum=MAX_SIZE)


def _row_operation(kernel: str) -> OperatorSpec:
    return OperatorSpec(
        kernel=kernel,
        sizes=(_size("rows"), _size("columns")),
        load="rows",
        aliases={"M": "rows", "tokens": "rows", "N": "columns", "hidden": "columns"},
    )


def _exchange(kernel: str) -> OperatorSpec:
    return OperatorSpec(
        kernel=kernel,
        sizes=(_size("message_bytes"), _size("devices", minimum=2)),
        load="message_bytes",
        aliases={"bytes": "message_bytes", "message": "message_bytes", "gpus": "devices"},
        formats=False,
        between_devices=True,
    )


_ATTENTION_ALIASES = {"batch_size": "batch", "num_heads": "heads", "num_kv_heads": "kv_heads"}
_PREFILL_ALIASES = {
    **_ATTENTION_ALIASES,
    "isl": "seq_len",
    "tokens": "seq_len",
    "prefix": "prefix_len",
}
_DECODE_ALIASES = {
    **_ATTENTION_ALIASES,
    "context": "kv_len",
    "seq_len": "kv_len",
    "isl": "kv_len",
}

OPERATORS: dict[str, OperatorSpec] = {
    "gemm": OperatorSpec(
        kernel="gemm",
        sizes=(_size("M"), _size("N"), _size("K")),
        load="M",
        aliases={"m": "M", "n": "N", "k": "K", "tokens": "M"},
    ),
    "attention_prefill": OperatorSpec(
        kernel="attention_prefill",
        sizes=(
            _size("batch", 1),
            _size("seq_len"),
            _size("prefix_len", 0, minimum=0),
            _size("heads"),
            _size("kv_heads", 0, minimum=0),
            _size("head_dim", 128),
            _size("window", 0, minimum=0),
        ),
        load="batch",
        aliases=_PREFILL_ALIASES,
        cache=True,
    ),
    "attention_decode": OperatorSpec(
        kernel="attention_decode",
        sizes=(
            _size("batch"),
            _size("kv_len"),
            _size("heads"),
            _size("kv_heads", 0, minimum=0),
            _size("head_dim", 128),
            _size("window", 0, minimum=0),
        ),
        load="batch",
        aliases=_DECODE_ALIASES,
        cache=True,
    ),
    "mla_prefill": OperatorSpec(
        kernel="mla_prefill",
        sizes=(
            _size("batch", 1),
            _size("seq_len"),
            _size("prefix_len", 0, minimum=0),
            _size("heads", 128),
        ),
        load="batch",
        aliases=_PREFILL_ALIASES,
        cache=True,
    ),
    "mla_decode": OperatorSpec(
        kernel="mla_decode",
        sizes=(_size("batch"), _size("kv_len"), _size("heads", 128)),
        load="batch",
        aliases=_DECODE_ALIASES,
        cache=True,
    ),
    "experts": OperatorSpec(
        kernel="moe",
        sizes=(
            _size("tokens"),
            _size("hidden"),
            _size("intermediate"),
            _size("experts"),
            _size("top_k"),
            _size("tp", 1),
            _size("ep", 1),
        ),
        load="tokens",
        aliases={"M": "tokens", "hidden_size": "hidden", "topk": "top_k", "num_experts": "experts"},
    ),
    "norm": _row_operation("norm"),
    "softmax": _row_operation("softmax"),
    "elementwise": _row_operation("elementwise"),
    "all_reduce": _exchange("all_reduce"),
    "all_to_all": _exchange("all_to_all"),
    "all_gather": _exchange("all_gather"),
    "reduce_scatter": _exchange("reduce_scatter"),
}
"""Operator -> what it is."""
OTHER_NAMES = {
    "matmul": "gemm",
    "linear": "gemm",
    "moe": "experts",
    "prefill": "attention_prefill",
    "decode": "attention_decode",
    "rmsnorm": "norm",
    "layernorm": "norm",
    "allreduce": "all_reduce",
    "alltoall": "all_to_all",
    "allgather": "all_gather",
}
"""Another name of an operator -> its name."""
PHASED = {
    "attention": ("attention_prefill", "attention_decode"),
    "mla": ("mla_prefill", "mla_decode"),
}
"""Name without a phase -> its prefill and its decode; a ``kv_len`` asks for the decode."""
