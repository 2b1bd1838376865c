"""Sparse latent attention that engines' tables have in one piece.

Tables have the sparse attention of DeepSeek-V3.2 (arXiv:2512.02556) and GLM-5 only in one piece:
projections, selection of keys, and attention. Plans use the piece if measured. The sum of its
parts is less, because it leaves out gathering selected keys and gaps between kernels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
import pandas as pd

from foretune.family import Cells, Cost
from foretune.features.families import formats as number_formats
from foretune.plan.cost.latent_attention import LATENT_DIM, ROPE_DIM
from foretune.plan.cost.operator import CACHE_SIZE, Operator, Part
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, table_name
from foretune.plan.describe.layout import Layout
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.values import Value

PREFILL = "dsa_context_module"
DECODE = "dsa_generation_module"
MODULES = (PREFILL, DECODE)
"""Kernels that contain all of sparse attention."""
MODELS = {
    "deepseek-ai/DeepSeek-V3.2": "deepseek",
    "zai-org/GLM-5": "glm",
    "zai-org/GLM-5-FP8": "glm",
}
"""Models in the tables -> their shape. GLM-5.2 is left out: its layers share one selection."""
SKIP_INDEXER = "skip_indexer"
"""Marks implementations without selection of keys."""
INDEXER_DIM = 128
"""Elements of an indexer's key."""
TOP_K = 2048
"""Selected keys."""


@dataclass(frozen=True)
class AttentionShape:
    """Sizes in which the measured models differ."""

    hidden: int  # width of the residual stream
    query_rank: int  # width of the compressed queries
    key_dim: int  # width of a head's key without position
    value_dim: int
    indexer_heads: int


SHAPES = {
    "deepseek": AttentionShape(
        hidden=7168, query_rank=1536, key_dim=128, value_dim=128, indexer_heads=64
    ),
    "glm": AttentionShape(
        hidden=6144, query_rank=2048, key_dim=192, value_dim=256, indexer_heads=32
    ),
}
"""Value of ``problem.shape`` -> its sizes."""


def sparse_attention_cost(problem: Cells, config: Cells) -> Cost:
    """Return projections, scores of all keys, and products with selected ones."""
    if "kv_len" in problem:
        new_tokens = 1.0
        seen_keys = 1.0 * problem["kv_len"]
    else:
        new_tokens = 1.0 * problem["seq_len"]
        seen_keys = problem.get("prefix_len", 0.0) + (new_tokens + 1.0) / 2.0
    batch = problem["batch"]
    heads = 1.0 * problem["heads"]
    tokens = batch * new_tokens
    size = _sizes_of(problem["shape"])

    # Projections into the latent space and of the indexer, then out of it, and of the output.
    down = size["hidden"] * (size["query_rank"] + LATENT_DIM + ROPE_DIM + INDEXER_DIM)
    head_queries = heads * (size["key_dim"] + ROPE_DIM)
    queries = size["query_rank"] * (head_queries + INDEXER_DIM * size["indexer_heads"])
    decompression = heads * (size["key_dim"] + size["value_dim"]) * LATENT_DIM
    output = heads * size["value_dim"] * size["hidden"]
    weights = down + queries + decompression + output

    # The indexer scores all keys. Attention reads the selected ones.
    scores = INDEXER_DIM * size["indexer_heads"] * seen_keys
    selected_keys = np.minimum(seen_keys, TOP_K)
    head_width = size["key_dim"] + ROPE_DIM + size["value_dim"]
    products = heads * head_width * selected_keys

    weight_format = config.get("gemm_format", "bf16")
    cache_bytes = number_formats.weight_bytes(config.get("kv_format", "bf16"))
    read_keys = cache_bytes * selected_keys * (LATENT_DIM + ROPE_DIM) + seen_keys * INDEXER_DIM
    return Cost(
        flops=2.0 * tokens * (weights + scores + products),
        bytes_moved=number_formats.weight_bytes(weight_format) * weights
        + batch * read_keys
        + 4.0 * tokens * size["hidden"],
        dtype=number_formats.compute_dtype(weight_format),
    )


def _sizes_of(shape_names: Any) -> dict[str, Any]:
    """Return the sizes of a shape, or of an array of shapes, by name; 0 for unknown shapes."""
    return {
        field.name: sum(
            np.equal(shape_names, name) * float(getattr(shape, field.name))
            for name, shape in SHAPES.items()
        )
        for field in fields(AttentionShape)
    }


def to_module_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return an engine's table with the column ``problem.shape``, without other models."""
    known = rows[rows["problem.model"].isin(MODELS)]
    implementation = known["config.implementation"].astype(str)
    selecting = known[~implementation.str.contains(SKIP_INDEXER)]
    shapes = selecting["problem.model"].astype(str).map(MODELS)
    return selecting.assign(**{"problem.shape": shapes}).reset_index(drop=True)


def attention_modules(
    model: ModelDescription, layout: Layout, formats: Formats, parts: Sequence[Part]
) -> list[Operator]:
    """Return the single-piece operators of a model's attention.

    Empty for models without such tables, and for decode steps with several tokens per request.
    """
    shape = _shape_of(model)
    if shape is None or any(part.phase == "decode" and part.new_tokens > 1 for part in parts):
        return []
    heads = ceil(model.heads / layout.tp)
    return [
        _module(shape, part, heads=heads, layers=model.layers, formats=formats) for part in parts
    ]


def _shape_of(model: ModelDescription) -> str | None:
    """Return the name of a model's shape; None if it is not in the tables."""
    mla = model.mla
    index = model.index
    if not mla or not index or model.compressed or model.linear:
        return None

    # Sizes that all measured models share.
    sizes = (mla.kv_lora_rank, mla.qk_rope, index.head_dim, index.top_k)
    if sizes != (LATENT_DIM, ROPE_DIM, INDEXER_DIM, TOP_K):
        return None
    if model.indexed_layers != model.layers:
        return None

    shape = AttentionShape(
        hidden=model.hidden,
        query_rank=mla.q_lora_rank,
        key_dim=mla.qk_nope,
        value_dim=mla.v_head,
        indexer_heads=index.heads,
    )
    names = {known: name for name, known in SHAPES.items()}
    return names.get(shape)


@lru_cache(CACHE_SIZE)
def _module(shape: str, part: Part, heads: int, layers: int, formats: Formats) -> Operator:
    sizes: dict[str, Value] = {"shape": shape, "batch": part.batch, "heads": heads}
    config = Configuration(
        format="bf16", gemm_format=table_name(formats.weights), kv_format=formats.kv
    )
    if part.phase == "decode":
        kernel = DECODE
        problem = Problem(**sizes, kv_len=part.context + part.new_tokens)
    else:
        kernel = PREFILL
        problem = Problem(**sizes, seq_len=part.new_tokens, prefix_len=part.context)
    return Operator(
        kernel=kernel,
        problem=problem,
        count=layers,
        phase=part.phase,
        config=config,
        name="attention",
    )
