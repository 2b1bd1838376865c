"""The layers of Vidur's MLP profile: the problem each of them solves, on one tensor-parallel rank.

Columns of weights are split over the ranks before attention and before the activation, rows after
them; norms, additions and embeddings see whole tokens. Theirs are other times all the same, beside
smaller shards shorter ones: how many ranks there were (``config.tp``) is kept.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from foretune.datasets.importers.columns import constant

LAYERS = ("emb", "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj",
          "post_attention_layernorm", "mlp_up_proj", "mlp_act", "mlp_down_proj", "add")  # fmt: skip
"""Layers that are imported, by Vidur's names."""


def layer_rows(table: pd.DataFrame, layer: str, has_post_norm: bool) -> pd.DataFrame:
    """Return the runs of one layer, with ``row`` saying from which row of the profile.

    A layer that a model does not have, so that none of its rows has a time, gives no rows.

    Args:
        table: the profile.
        layer: one of `LAYERS`.
        has_post_norm: whether the profile has a column for a second norm; only models with RMS
            norm have one.
    """
    time_ms = table[f"{layer}.median"].astype(float)
    there = _has_times(table, time_ms).to_numpy()
    if layer in ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj"):
        rows = pd.DataFrame({"problem.M": table["num_tokens"], **_projection(table, layer)})
        kernel = "gemm"
    else:
        rows = pd.DataFrame({"problem.rows": table["num_tokens"], **_elementwise(table, layer)})
        kernel = "elementwise"
        rows["config.tp"] = table["num_tensor_parallel_workers"]
        if layer.endswith("layernorm"):
            kernel = "norm"
            rms = _has_post_norm(table, has_post_norm)
            rows["problem.op"] = _either(rms, "rms_norm", "layer_norm")
    rows["time_ms"], rows["row"] = time_ms, np.arange(len(table))
    rows = rows[there].reset_index(drop=True)
    rows["kernel"] = constant(kernel, len(rows))
    rows["config.implementation"] = constant(layer, len(rows))
    return rows


def _projection(table: pd.DataFrame, layer: str) -> Mapping[str, "pd.Series[int]"]:
    width, hidden = table["n_embd"], table["n_expanded_embd"]
    tp = table["num_tensor_parallel_workers"]
    head_dim = width // table["n_head"]
    up = hidden * np.where(table["use_gated_mlp"].astype(bool), 2, 1)
    n, k = {
        "attn_pre_proj": ((table["n_head"] + 2 * table["n_kv_head"]) * head_dim // tp, width),
        "attn_post_proj": (width, table["n_head"] * head_dim // tp),
        "mlp_up_proj": (up // tp, width),
        "mlp_down_proj": (width, hidden // tp),
    }[layer]
    return {"problem.N": n, "problem.K": k}


def _elementwise(table: pd.DataFrame, layer: str) -> Mapping[str, object]:
    width, tp = table["n_embd"], table["num_tensor_parallel_workers"]
    head_dim = width // table["n_head"]
    if layer == "mlp_act":
        gated = table["use_gated_mlp"].astype(bool).to_numpy()
        columns = table["n_expanded_embd"] // tp
        return {"problem.columns": columns, "problem.op": _either(gated, "silu_and_mul", "gelu")}
    if layer == "attn_rope":  # queries and keys
        columns = (table["n_head"] + table["n_kv_head"]) * head_dim // tp
        return {"problem.columns": columns, "problem.op": constant("rope", len(table))}
    op = {"add": "add", "emb": "embedding"}.get(layer, layer)
    return {"problem.columns": width, "problem.op": constant(op, len(table))}


def _has_post_norm(table: pd.DataFrame, has_post_norm: bool) -> np.ndarray:
    if not has_post_norm:
        return np.zeros(len(table), dtype=bool)
    return _has_times(table, table["post_attention_layernorm.median"]).to_numpy()


def _has_times(table: pd.DataFrame, time_ms: "pd.Series[float]") -> "pd.Series[bool]":
    """Return for every row whether its model has any time of this layer."""
    timed = time_ms.notna()
    if "model" not in table:
        return pd.Series(timed.any(), index=table.index)
    return timed.groupby(table["model"], observed=True).transform("any")


def _either(first: np.ndarray, yes: str, no: str) -> "pd.Series[str]":
    return pd.Series(pd.Categorical.from_codes(np.where(first, 0, 1).astype(np.int8), [yes, no]))
