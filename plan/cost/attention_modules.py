"""Sparse attention measured in one piece: projections, selection of keys, and attention.

Engines' tables have sparse latent attention (DeepSeek-V3.2, arXiv:2512.02556, and GLM-5) only in
this form. Its parts add up to much less than the measured prefill time: the kernels gather selected
keys from latent vectors, with gaps between kernels. So plans use the piece if measured, else the
parts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
import pandas as pd

from foretune.family import Cost, Family
from foretune.features.families import formats
from foretune.plan.cost.operator import CACHE_SIZE, Operator, Part
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, table_name
from foretune.plan.describe.layout import Layout
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.values import Value

PREFILL, DECODE = "dsa_context_module", "dsa_generation_module"
MODELS = ("deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5", "zai-org/GLM-5-FP8")
"""Models in the tables. GLM-5.2 is left out: its layers share the selection of one layer."""
SKIP_INDEXER = "skip_indexer"
"""Marks implementations without selection of keys."""


@dataclass(frozen=True)
class _Shape:
    """Sizes of a model with sparse attention."""

    hidden: int
    query_rank: int
    key_dim: int
    value_dim: int
    indexer_heads: int


_SHAPES = {
    "deepseek": _Shape(7168, 1536, 128, 128, 64), "glm": _Shape(6144, 2048, 192, 256, 32),
}  # fmt: skip
_SHAPE_NAMES = {shape: name for name, shape in _SHAPES.items()}
_SHAPE_OF_MODEL = dict(zip(MODELS, ("deepseek", "glm", "glm"), strict=True))
LATENT_DIM, ROPE_DIM, INDEXER_DIM, TOP_K = 512, 64, 128, 2048
"""Elements of the cached latent vector, its rotary part, and an indexer's key; selected keys."""


class _SparseAttention(Family):
    """Columns: problem.batch, heads, and shape, a name in `_SHAPES`."""

    accepts_scalars = True

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return projections, scores of all keys, and products with the selected ones.

        Weights and cached values move once.
        """
        batch, new, seen = self._tokens(problem)
        heads, tokens = 1.0 * problem["heads"], batch * new
        kind = config.get("gemm_format", "bf16")
        hidden, queries, keys, values, scorers = (
            _size(problem["shape"], field.name) for field in fields(_Shape)
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

    def _tokens(self, problem: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Return requests, new tokens of each, and the keys before a token."""
        raise NotImplementedError


class SparsePrefill(_SparseAttention):
    """Columns also: problem.seq_len, prefix_len."""

    name = PREFILL

    def _tokens(self, problem: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        new = 1.0 * problem["seq_len"]
        return problem["batch"], new, problem.get("prefix_len", 0.0) + (new + 1.0) / 2.0


class SparseDecode(_SparseAttention):
    """Columns also: problem.kv_len."""

    name = DECODE

    def _tokens(self, problem: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        return problem["batch"], 1.0, 1.0 * problem["kv_len"]


MODULES: tuple[type[Family], ...] = (SparsePrefill, SparseDecode)


def to_module_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return an engine's table with the columns of `MODULES`, without other models."""
    rows = rows[rows["problem.model"].isin(MODELS)]
    rows = rows[~rows["config.implementation"].astype(str).str.contains(SKIP_INDEXER)]
    shapes = rows["problem.model"].astype(str).map(_SHAPE_OF_MODEL)
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


def _size(shapes: Any, field: str) -> Any:
    """Return a size of a shape given by name, or of a column of names."""
    found = [np.equal(shapes, name) * float(getattr(s, field)) for name, s in _SHAPES.items()]
    return sum(found)


def _shape_of(model: ModelDescription) -> str | None:
    """Return the name of a model's shape; None if it is not in the tables."""
    mla, index = model.mla, model.index
    if not mla or not index or model.compressed or model.linear:
        return None
    shape = _Shape(model.hidden, mla.q_lora_rank, mla.qk_nope, mla.v_head, index.heads)
    sizes = (mla.kv_lora_rank, mla.qk_rope, index.head_dim, index.top_k)
    matches = (
        sizes == (LATENT_DIM, ROPE_DIM, INDEXER_DIM, TOP_K) and model.indexed_layers == model.layers
    )
    return _SHAPE_NAMES.get(shape) if matches else None


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
