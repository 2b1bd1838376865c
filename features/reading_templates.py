"""Names of sizes in strangers' tables, by the family that they hint at.

All names are in lower case. Where several fit a size, the first one in a list counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Names = Mapping[str, Sequence[str]]
"""Size of a family -> names that a table may give it."""


@dataclass(frozen=True, kw_only=True)
class Template:
    """The names that hint at a family, in lower case.

    Attributes:
        family: name of the registered family.
        title: what the operation is called in messages.
        sizes: names of the sizes that a table must have.
        optional: names of sizes that a table may lack.
        settings: names of settings of the configuration, which a table may lack.
    """

    family: str
    title: str
    sizes: Names
    optional: Names = field(default_factory=dict)
    settings: Names = field(default_factory=dict)


FORMAT_NAMES = ("format", "dtype", "data_type", "datatype", "precision", "type")
"""Names of columns with the format of the numbers."""
TOKENS = ("tokens", "num_tokens", "n_tokens", "ntokens", "nt")
BATCH = ("batch", "batch_size", "batchsize", "b", "bs", "nbatch", "num_seqs")
HEADS = ("heads", "num_heads", "n_heads", "nheads", "nhead", "num_attention_heads", "h")
KV_HEADS = (
    *("kv_heads", "num_kv_heads", "n_kv_heads", "num_key_value_heads", "nheads_k", "h_kv"),
    *("hkv", "heads_kv"),
)
HEAD_DIM = ("head_dim", "headdim", "head_size", "d_head", "dim", "d", "hdim")
SEQ_LEN = (
    *("seq_len", "seqlen", "seq", "sequence_length", "isl", "prompt_len", "input_len", "s"),
    *("seq_q", "seqlen_q", "q_len", "context_len", "context_length", "n_ctx", "n_prompt"),
)
KV_LEN = (
    *("kv_len", "kvlen", "kv_seq_len", "seqlen_k", "seq_k", "kv_length", "cache_len", "step"),
    *("past_len", *SEQ_LEN),
)
WINDOW = ("window", "window_size", "sliding_window")
ATTENTION = {"batch": BATCH, "heads": HEADS, "head_dim": HEAD_DIM}
"""Sizes that attention has in both phases."""

MATRIX_PRODUCT = Template(
    family="gemm",
    title="a matrix product",
    sizes={
        "M": ("m", "rows", "num_rows", "n_rows", *TOKENS),
        "N": ("n", "cols", "columns", "num_cols", "n_cols", "out_features", "output_size"),
        "K": ("k", "inner", "in_features", "input_size", "reduction", "depth"),
    },
    optional={"batch": BATCH},
)
PREFILL = Template(
    family="attention_prefill",
    title="attention over a prompt",
    sizes={**ATTENTION, "seq_len": SEQ_LEN},
    optional={"kv_heads": KV_HEADS, "window": WINDOW},
)
DECODE = Template(
    family="attention_decode",
    title="attention of one token each",
    sizes={**ATTENTION, "kv_len": KV_LEN},
    optional={"kv_heads": KV_HEADS, "window": WINDOW},
)
EXPERTS = Template(
    family="moe",
    title="a mixture of experts",
    sizes={
        "tokens": ("m", *TOKENS),
        "hidden": ("hidden", "hidden_size", "d_model", "model_dim", "n_embd"),
        "intermediate": ("intermediate", "intermediate_size", "inter_size", "ffn_dim", "inter"),
        "top_k": ("top_k", "topk", "num_experts_per_tok"),
        "experts": ("experts", "num_experts", "n_experts", "e"),
    },
    optional={"distribution": ("distribution",)},
    settings={
        "tp": ("tp", "moe_tp_size", "tp_size"),
        "ep": ("ep", "moe_ep_size", "ep_size"),
    },
)
ROW_OPERATION = Template(
    family="norm",
    title="an operation on rows",
    sizes={
        "rows": ("rows", "m", "num_rows", "n_rows", *TOKENS, *BATCH),
        "columns": (
            *("columns", "cols", "n", "num_cols", "hidden", "hidden_size", "h", "dim", "d"),
            *("n_embd", "d_model", "features"),
        ),
    },
)
EXCHANGE = Template(
    family="all_reduce",
    title="an exchange between devices",
    sizes={
        "message_bytes": (
            *("message_bytes", "message_size", "msg_size", "size_bytes", "nbytes", "num_bytes"),
            *("bytes", "size", "message"),
        ),
        "devices": (
            *("devices", "num_devices", "num_gpus", "n_gpus", "ngpus", "gpus", "world_size"),
            *("ranks", "nranks", "num_ranks", "num_workers", "world"),
        ),
    },
)
TEMPLATES = (MATRIX_PRODUCT, PREFILL, DECODE, EXPERTS, ROW_OPERATION, EXCHANGE)
