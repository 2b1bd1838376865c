"""Kinds of operators: the columns that identify a measurement, and the work of attention.

Latent vectors have DeepSeek's sizes (DeepSeek-V2, arXiv:2405.04434), as in every measured model
with latent attention. Gated delta rule, Kimi's and Mamba-2's layers have the same parts: a short
convolution over queries, keys and values, and a state per value head, read and updated for every
token.

Engines' tables have sparse latent attention (DeepSeek-V3.2, arXiv:2512.02556, and GLM-5) only in
one piece: projections, selection of keys, and attention. Plans use the piece if measured. The sum
of its parts is less, because it leaves out gathering selected keys and gaps between kernels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import ceil

import numpy as np
import pandas as pd

from foretune.family import Cells, Cost, Family
from foretune.features.families import formats
from foretune.plan.cost.operator import CACHE_SIZE, RECURRENT_OPS, Operator, Part
from foretune.plan.describe import shipped_rows
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, table_name
from foretune.plan.describe.layout import Layout
from foretune.problem import Problem
from foretune.registry import load, registered
from foretune.space import Configuration
from foretune.values import Value

LATENT_DIM, ROPE_DIM, NOPE_DIM, VALUE_DIM = 512, 64, 128, 128
"""Elements of the cached latent vector, of its rotary part, and of a head's own key and value."""


def _latent_prefill(problem: Cells, config: Cells) -> Cost:
    """Return the products of decompressed keys and values; each tensor moves once."""
    seq, prefix = problem["seq_len"], problem.get("prefix_len", 0.0)
    rows = 1.0 * problem["batch"] * problem["heads"]
    keys = prefix + (seq + 1.0) / 2.0
    size = np.maximum(formats.activation_bytes(config.get("format", "bf16")), 1.0)
    width = NOPE_DIM + ROPE_DIM + VALUE_DIM
    return Cost(
        flops=2.0 * rows * seq * keys * width,
        bytes_moved=size * rows * (seq * width + (seq + prefix) * width),
        dtype=formats.compute_dtype(config.get("format", "bf16")),
    )


def _latent_decode(problem: Cells, config: Cells) -> Cost:
    """Return the products with the latent cache, which is read once for all heads."""
    batch, keys, heads = problem["batch"], problem["kv_len"], problem["heads"]
    cache = formats.weight_bytes(config.get("kv_format", "bf16"))
    return Cost(
        flops=2.0 * batch * heads * keys * (2.0 * LATENT_DIM + ROPE_DIM),
        bytes_moved=batch * (cache * keys + 4.0 * heads) * (LATENT_DIM + ROPE_DIM),
        dtype=formats.compute_dtype(config.get("format", "bf16")),
    )


def _latent_projection(problem: Cells, config: Cells) -> Cost:
    """Return one product of each head's vector with its NOPE x LATENT matrix."""
    tokens, heads = 1.0 * problem["tokens"], problem["heads"]
    kind = config.get("format", "bf16")
    return Cost(
        flops=2.0 * tokens * heads * NOPE_DIM * LATENT_DIM,
        bytes_moved=heads
        * (
            formats.weight_bytes(kind) * NOPE_DIM * LATENT_DIM
            + 2.0 * tokens * (NOPE_DIM + LATENT_DIM)
        ),
        dtype=formats.compute_dtype(kind),
    )


STATE_BYTES = 4.0
ACTIVATION_BYTES = 2.0
PHASES = ("context", "generation")
"""Table phases to keep; the others are of speculative verification."""
MAMBA_COLUMNS = {
    "problem.n_groups": "problem.num_k_heads",
    "problem.d_state": "problem.head_k_dim",
    "problem.nheads": "problem.num_v_heads",
    "problem.head_dim": "problem.head_v_dim",
}
"""Mamba-2 column -> the equivalent column of linear attention."""


def _recurrent(problem: Cells, config: Cells) -> Cost:
    """Return the work of the convolution, or of reading and updating the state."""
    batch, tokens = 1.0 * problem["batch"], 1.0 * problem["batch"] * problem["seq_len"]
    keys = problem["num_k_heads"] * problem["head_k_dim"]
    values = problem["num_v_heads"] * problem["head_v_dim"]
    state = values * problem["head_k_dim"]
    channels = 2.0 * keys + values
    convolves = np.equal(problem["op"], "convolution") * 1.0
    flops = convolves * 2.0 * channels * problem["d_conv"] + (1.0 - convolves) * 6.0 * state
    stored = convolves * ACTIVATION_BYTES * channels * problem["d_conv"]
    stored = stored + (1.0 - convolves) * STATE_BYTES * state
    moved = 2.0 * stored * batch + 2.0 * ACTIVATION_BYTES * tokens * channels
    return Cost(flops=tokens * flops, bytes_moved=moved, dtype="bf16")


RECURRENT = ("gdn", "kda", "mamba2")
"""The gated delta rule, Kimi's delta attention, and state-space layers."""


def to_recurrent_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return an engine's table with columns of `gdn`'s names, and the kernel in ``problem.op``."""
    rows = rows.rename(columns=MAMBA_COLUMNS)
    convolves = rows["config.implementation"].astype(str).str.startswith("causal_conv1d")
    rows = rows.assign(**{"problem.op": np.where(convolves, *RECURRENT_OPS)})
    return rows[rows["problem.phase"].isin(PHASES)]


MODULES = PREFILL, DECODE = "dsa_context_module", "dsa_generation_module"
"""Kernels that contain all of sparse attention."""
MODELS = {
    "deepseek-ai/DeepSeek-V3.2": "deepseek",
    "zai-org/GLM-5": "glm",
    "zai-org/GLM-5-FP8": "glm",
}
"""Models in the tables -> their shape. GLM-5.2 is left out: its layers share one selection."""
SKIP_INDEXER = "skip_indexer"
"""Marks implementations without selection of keys."""
_SHAPES = {"deepseek": (7168, 1536, 128, 128, 64), "glm": (6144, 2048, 192, 256, 32)}
"""Shape -> width, ranks of queries, widths of a head's key and value, and the indexer's heads."""
INDEXER_DIM, TOP_K = 128, 2048
"""Elements of an indexer's key; selected keys."""


def _sparse_attention(problem: Cells, config: Cells) -> Cost:
    """Return projections, scores of all keys, and products with selected ones; see `_SHAPES`."""
    if "kv_len" in problem:
        new, seen = 1.0, 1.0 * problem["kv_len"]
    else:
        new = 1.0 * problem["seq_len"]
        seen = problem.get("prefix_len", 0.0) + (new + 1.0) / 2.0
    batch, heads = problem["batch"], 1.0 * problem["heads"]
    tokens = batch * new
    kind = config.get("gemm_format", "bf16")
    named = [(np.equal(problem["shape"], name), sizes) for name, sizes in _SHAPES.items()]
    hidden, queries, keys, values, scorers = (
        sum(here * float(sizes[i]) for here, sizes in named) for i in range(5)
    )
    weights = (
        hidden * (queries + LATENT_DIM + ROPE_DIM + INDEXER_DIM)
        + queries * (heads * (keys + ROPE_DIM) + INDEXER_DIM * scorers)
        + heads * (keys + values) * LATENT_DIM
        + heads * values * hidden
    )
    chosen, head = np.minimum(seen, TOP_K), keys + ROPE_DIM + values
    scores = INDEXER_DIM * scorers * seen
    cache = formats.weight_bytes(config.get("kv_format", "bf16"))
    return Cost(
        flops=2.0 * tokens * (weights + scores + heads * head * chosen),
        bytes_moved=formats.weight_bytes(kind) * weights
        + batch * (cache * chosen * (LATENT_DIM + ROPE_DIM) + seen * INDEXER_DIM)
        + 4.0 * tokens * hidden,
        dtype=formats.compute_dtype(kind),
    )


def to_module_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return an engine's table with the column ``problem.shape``, without other models."""
    rows = rows[rows["problem.model"].isin(MODELS)]
    rows = rows[~rows["config.implementation"].astype(str).str.contains(SKIP_INDEXER)]
    shapes = rows["problem.model"].astype(str).map(MODELS)
    return rows.assign(**{"problem.shape": shapes}).reset_index(drop=True)


def attention_modules(
    model: ModelDescription, layout: Layout, formats: Formats, parts: Sequence[Part]
) -> list[Operator]:
    """Return the single-piece operators of a model's attention.

    Empty for models without such tables, and for decode steps with several tokens per request.
    """
    shape = _shape_of(model)
    if shape is None or any(p.phase == "decode" and p.new_tokens > 1 for p in parts):
        return []
    heads = ceil(model.heads / layout.tp)
    return [_module(shape, p, heads, model.layers, formats) for p in parts]


def _shape_of(model: ModelDescription) -> str | None:
    """Return the name of a model's shape; None if it is not in the tables."""
    mla, index = model.mla, model.index
    if not mla or not index or model.compressed or model.linear:
        return None
    shape = (model.hidden, mla.q_lora_rank, mla.qk_nope, mla.v_head, index.heads)
    sizes = (mla.kv_lora_rank, mla.qk_rope, index.head_dim, index.top_k)
    matches = (
        sizes == (LATENT_DIM, ROPE_DIM, INDEXER_DIM, TOP_K) and model.indexed_layers == model.layers
    )
    names = {known: name for name, known in _SHAPES.items()}
    return names.get(shape) if matches else None


@lru_cache(CACHE_SIZE)
def _module(shape: str, part: Part, heads: int, layers: int, formats: Formats) -> Operator:
    sizes: dict[str, Value] = {"shape": shape, "batch": part.batch, "heads": heads}
    config = Configuration(
        format="bf16", gemm_format=table_name(formats.weights), kv_format=formats.kv
    )
    if part.phase == "decode":
        problem = Problem(**sizes, kv_len=part.context + part.new_tokens)
        return Operator(DECODE, problem, layers, "decode", config, "attention")
    problem = Problem(**sizes, seq_len=part.new_tokens, prefix_len=part.context)
    return Operator(PREFILL, problem, layers, "prefill", config, "attention")


@dataclass(frozen=True)
class OperatorKind:
    """The columns that distinguish the operators of one kernel -> default if a table lacks them.

    Texts in ``exact`` must match; the most informative is first.
    """

    axes: Mapping[str, float]  # sizes
    exact: Mapping[str, str]
    load_axis: str = ""  # axis along which times should not fall, if any
    tiled: bool = False  # whether kernels compute whole tiles along the load axis
    splits: bool = False  # whether work can be split into equal parts along the load axis
    strict: bool = False  # whether measurements with other ``exact`` values are unrelated work

    def coordinates(self, rows: pd.DataFrame) -> np.ndarray:
        """Return the coordinates of operators in octaves (rows, axes)."""
        offsets = [LOG_OFFSETS.get(column, 0.0) for column in self.axes]
        return np.log2(self._sizes(rows).to_numpy() + offsets)

    def keys(self, rows: pd.DataFrame) -> "pd.Series[str]":
        """Return the joined text of the exact columns, with defaults."""
        texts = [column for _, column in self._texts(rows).items()]
        if not texts:
            return pd.Series("", index=rows.index, dtype=object)
        return reduce(lambda left, right: left + "/" + right, texts)

    def fill_missing(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return ``rows`` with all columns of the kind, with defaults."""
        return rows.assign(**self._sizes(rows), **self._texts(rows))

    def _sizes(self, rows: pd.DataFrame) -> pd.DataFrame:
        return rows.reindex(columns=list(self.axes)).astype(float).fillna(dict(self.axes))

    def _texts(self, rows: pd.DataFrame) -> pd.DataFrame:
        return rows.reindex(columns=list(self.exact)).astype(object).fillna(dict(self.exact))

    def round_up_to_tiles(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return ``rows`` with large sizes rounded up to whole tiles.

        Tables have sizes that fill tiles, and sizes just above them. A predictor would treat sizes
        in between like the latter, which are the slowest.
        """
        if not self.tiled:
            return rows
        size = rows[self.load_axis].to_numpy(dtype=float)
        rounded = TILE * np.ceil(size / TILE)
        return rows.assign(**{self.load_axis: np.where(size < MIN_TILED_SIZE, size, rounded)})


LOG_OFFSETS = {"problem.prefix_len": 64.0, "problem.window": 64.0}
"""Added to sizes that may be 0, so that small differences do not matter."""
TILE = 128
MIN_TILED_SIZE = 8 * TILE
"""Smallest size that is rounded up to tiles."""
UNGATED_NAME = "nongated"
"""Marks implementations whose experts have no gate."""
MIN_LATENCY_NAME = "min_latency"
"""Marks implementations that TensorRT-LLM runs only on request (``enable_min_latency``, off by
default)."""
FORMAT_COLUMNS = ("config.format", "config.kv_format")


def _defaults(text: str) -> dict[str, str]:
    """Parse columns like ``heads head_dim=128 config.tp``: column -> default, empty if none."""
    parts = (part.partition("=") for part in text.split())
    return {name if "." in name else f"problem.{name}": default for name, _, default in parts}


KINDS = {
    row["kernel"]: OperatorKind(
        axes={name: float(default or 1) for name, default in _defaults(row["axes"]).items()},
        exact=_defaults(row["exact"]),
        load_axis=row["load_axis"] and f"problem.{row['load_axis']}",
        **dict.fromkeys(row["properties"].split(), True),
    )
    for row in shipped_rows("kinds.csv", "foretune.plan.cost")
}
"""Kernel -> its kind; other kernels use the roofline."""


class PlanFamily(Family):
    """A kernel that only plans know; ``work`` returns the cost of a launch."""

    def __init__(self, name: str, work: Callable[[Cells, Cells], Cost]) -> None:
        self.name, self._work = name, work

    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Return the work of one launch."""
        return self._work(problem, config)


_WORK = {
    "mla_prefill": _latent_prefill,
    "mla_decode": _latent_decode,
    "mla_bmm": _latent_projection,
    **dict.fromkeys(RECURRENT, _recurrent),
    **dict.fromkeys(MODULES, _sparse_attention),
}
"""Kernels that only plans know -> cost of a launch."""


def with_expert_kind(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rows`` with ``config.experts``: gated (three matrices) or plain (two).

    Engines' tables mark this only in the implementation's name. Implementations that engines do not
    run by default (`MIN_LATENCY_NAME`) are dropped.
    """
    if "config.implementation" not in rows:
        return rows
    names = rows["config.implementation"].astype(str)
    by_default, plain = ~names.str.contains(MIN_LATENCY_NAME), names.str.contains(UNGATED_NAME)
    return rows.assign(**{"config.experts": np.where(plain, "plain", "gated")})[by_default]


CONVERTERS = {
    "moe": with_expert_kind,
    **dict.fromkeys(RECURRENT, to_recurrent_rows),
    **dict.fromkeys(MODULES, to_module_rows),
}
"""Kernel -> function that completes an engine's table."""


def work_share(rows: pd.DataFrame) -> np.ndarray:
    """Return each operator's work relative to its family's cost.

    It is two thirds for experts without a gate. Their predictors are better without this factor,
    because they learn the difference.
    """
    plain = rows["config.experts"] == "plain" if "config.experts" in rows else np.zeros(len(rows))
    return 1.0 - np.asarray(plain, dtype=float) / 3.0


def family_of(kernel: str) -> Family | None:
    """Return the family with the cost model of ``kernel``, or None."""
    if kernel in _WORK:
        return PlanFamily(kernel, _WORK[kernel])
    return load("families", kernel)() if kernel in registered("families") else None
