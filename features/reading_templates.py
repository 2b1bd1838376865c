"""Names of sizes in strangers' tables, by the family that they hint at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FORMAT = {
    "format": (
        *("format", "dtype", "data_type", "datatype", "precision", "compute_dtype", "gemm_dtype"),
        *("moe_dtype", "attn_dtype", "weight_dtype", "input_dtype", "in_dtype", "quantization"),
        *("quant", "quant_type", "type"),
    )
}
"""A setting of every family: the format of the numbers."""
TEXTS = ("format", "distribution")
"""Sizes and settings that may be texts; the others must be numbers."""


@dataclass(frozen=True)
class Template:
    """The names that hint at a family.

    The names of a size or a setting are in lower case, the first ones count first. A column stands
    for one size only, the first in the order of the template.

    Attributes:
        family: name of the registered family.
        called: what the operation is called in messages.
        sizes: size of the family -> names that a table may give it.
        optional: the same, of sizes that a table may lack.
        settings: the same, of settings of the configuration; a table may lack them.
    """

    family: str
    called: str
    sizes: Mapping[str, Sequence[str]]
    optional: Mapping[str, Sequence[str]] = field(default_factory=dict)
    settings: Mapping[str, Sequence[str]] = field(default_factory=lambda: FORMAT)


ANY_READING = "any"
"""Takes the reading that fits the runs best, if one does."""
NO_READING = "none"
"""Takes none: names of columns say nothing."""

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
PRODUCT = {
    "M": ("m", "rows", "num_rows", "n_rows", *TOKENS),
    "N": ("n", "cols", "columns", "num_cols", "n_cols", "out_features", "output_size"),
    "K": ("k", "inner", "in_features", "input_size", "reduction", "depth"),
}
ATTENTION = {"batch": BATCH, "heads": HEADS, "head_dim": HEAD_DIM}
MESSAGE = {
    "message_bytes": (
        *("message_bytes", "message_size", "msg_size", "size_bytes", "nbytes", "num_bytes"),
        *("bytes", "size", "message"),
    ),
    "devices": (
        *("devices", "num_devices", "num_gpus", "n_gpus", "ngpus", "gpus", "world_size", "ranks"),
        *("nranks", "num_ranks", "num_workers", "world"),
    ),
}

TEMPLATES = (
    Template("gemm", "a matrix product", PRODUCT, {"batch": BATCH}),
    Template(
        "attention_prefill",
        "attention over a prompt",
        {**ATTENTION, "seq_len": SEQ_LEN},
        {"kv_heads": KV_HEADS, "window": WINDOW},
    ),
    Template(
        "attention_decode",
        "attention of one token each",
        {**ATTENTION, "kv_len": KV_LEN},
        {"kv_heads": KV_HEADS, "window": WINDOW},
    ),
    Template(
        "moe",
        "a mixture of experts",
        {
            "tokens": ("m", *TOKENS),
            "hidden": ("hidden", "hidden_size", "d_model", "model_dim", "n_embd"),
            "intermediate": ("intermediate", "intermediate_size", "inter_size", "ffn_dim", "inter"),
            "top_k": ("top_k", "topk", "num_experts_per_tok"),
            "experts": ("experts", "num_experts", "n_experts", "e"),
        },
        {"distribution": ("distribution",)},
        {"tp": ("tp", "moe_tp_size", "tp_size"), "ep": ("ep", "moe_ep_size", "ep_size"), **FORMAT},
    ),
    Template(
        "norm",
        "an operation on rows",
        {
            "rows": ("rows", "m", "num_rows", "n_rows", *TOKENS, *BATCH),
            "columns": (
                *("columns", "cols", "n", "num_cols", "hidden", "hidden_size", "h", "dim", "d"),
                *("n_embd", "d_model", "features"),
            ),
        },
    ),
    Template("all_reduce", "an exchange between devices", MESSAGE),
)

READINGS = (ANY_READING, NO_READING, *(template.family for template in TEMPLATES))
"""What a user may say that an unknown kernel is."""
