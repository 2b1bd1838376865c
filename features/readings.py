"""What an unknown kernel may be, by the names of its sizes.

A stranger's table has columns such as ``rows``, ``num_tokens`` or ``isl``. Such names are hints. A
`Template` lists the names that a table may give to the sizes of a family; if the table has one for
each size, the family with these columns is a `Reading` of the table. There may be several, because
``n`` or ``h`` is a size of many families. Which of them is right, if any, is decided by the runs
(`foretune.models.chosen_reading`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.family import Cells, Cost, Family, Quantity
from foretune.registry import load

FORMAT = {"format": ("format", "dtype", "data_type", "datatype", "precision", "type")}
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


@dataclass(frozen=True)
class Reading:
    """A family, and which columns are its sizes.

    ``columns`` maps sizes and settings of the family to columns of the table.
    """

    template: Template
    columns: Mapping[str, str]

    def __str__(self) -> str:
        """Return the reading in words: ``read as a matrix product: M = rows, …``."""
        pairs = [f"{size} = {column.partition('.')[2]}" for size, column in self.columns.items()]
        return f"read as {self.template.called}: {', '.join(pairs)}"


def possible_readings(runs: pd.DataFrame) -> list[Reading]:
    """Return the readings whose sizes all have a name in ``runs``."""
    # A size is one of the problem: a column of the configuration counts only if no column of the
    # problem has its name.
    column_of_name: dict[str, str] = {}
    for column in [*columns_of(runs, "problem"), *columns_of(runs, "config")]:
        name = column.partition(".")[2].lower()
        column_of_name.setdefault(name, column)
    are_numbers = {
        column: pd.api.types.is_numeric_dtype(runs[column]) for column in column_of_name.values()
    }

    readings = []
    for template in TEMPLATES:
        # Every size needs a column of numbers.
        columns = _named_columns(template.sizes, column_of_name)
        has_all_sizes = len(columns) == len(template.sizes)
        if not has_all_sizes or not all(are_numbers[column] for column in columns.values()):
            continue

        # A name of an optional size may stand for something else: its texts are no sizes.
        unused = {
            n: column for n, column in column_of_name.items() if column not in columns.values()
        }
        others = _named_columns({**template.optional, **template.settings}, unused)
        for size, column in others.items():
            if size in TEXTS or are_numbers[column]:
                columns[size] = column
        readings.append(Reading(template, columns))
    return readings


def _named_columns(
    names_of_size: Mapping[str, Sequence[str]], column_of_name: Mapping[str, str]
) -> dict[str, str]:
    """Return the column of each size that has one; see `Template` for what comes first."""
    columns: dict[str, str] = {}
    for size, names in names_of_size.items():
        candidates = [column_of_name[name] for name in names if name in column_of_name]
        unused = [column for column in candidates if column not in columns.values()]
        if unused:
            columns[size] = unused[0]
    return columns


class RenamedFamily(Family):
    """A family whose sizes have other names in the table."""

    def __init__(self, name: str, reading: Reading) -> None:
        self.name = name
        self.reading = reading
        self.inner: Family = load("families", reading.template.family)()

    @cached_property
    def source_hash(self) -> str:
        """Hash of the family's code."""
        return self.inner.source_hash

    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Return the work of one launch."""
        return self.inner.cost(*self._renamed(problem, config))

    def launch_parts_ms(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return the time of one launch by each limit alone."""
        return self.inner.launch_parts_ms(*self._renamed(problem, config), device)

    def derived(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return the family's features."""
        return self.inner.derived(*self._renamed(problem, config), device)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`."""
        template = self.reading.template
        return {"family": template.family, "columns": dict(self.reading.columns)}

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, Any]) -> Self:
        """Return the family that `to_json` wrote."""
        template = next(t for t in TEMPLATES if t.family == data["family"])
        return cls(name, Reading(template, dict(data["columns"])))

    def _renamed(self, problem: Cells, config: Cells) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return problem and configuration with the family's names, beside other columns.

        A size becomes one of the problem, a setting one of the configuration, wherever the table
        has it.
        """
        column_of_size = self.reading.columns
        renamed_columns = set(column_of_size.values())
        renamed_problem = {
            name: cells
            for name, cells in problem.items()
            if f"problem.{name}" not in renamed_columns
        }
        renamed_config = {
            name: cells for name, cells in config.items() if f"config.{name}" not in renamed_columns
        }
        for size, column in column_of_size.items():
            group, _, name = column.partition(".")
            cells = problem[name] if group == "problem" else config[name]
            if size in self.reading.template.settings:
                renamed_config[size] = cells
            else:
                renamed_problem[size] = cells
        return renamed_problem, renamed_config
