"""Reads Vidur's profiles of layers (``mlp.csv``) as a run table.

Vidur (https://github.com/microsoft/vidur) simulates serving from such profiles. The predictors are
scored on models that are held out of them (`predictor_tasks.py`).
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.importers.columns import (
    concatenated_rows,
    concatenated_text,
    constant,
    relabel,
)
from foretune.datasets.importers.files import read_table, require
from foretune.datasets.runs import ordered_columns, with_specs
from foretune.datasets.schema import valid_rows
from foretune.measurement import Status

MODEL_COLUMNS = (
    "model",
    "device",
    "n_head",
    "n_kv_head",
    "n_embd",
    "n_expanded_embd",
    "use_gated_mlp",
    "num_tokens",
    "num_tensor_parallel_workers",
)
LAYERS = (
    "emb",
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
"""Imported layers, by Vidur's names."""

DEVICES = {
    # The tables do not name the card. Large products run slower on this A100 than on SXM boards,
    # and NVLink between pairs is what PCIe cards have; the H100's rates exceed a PCIe card's peaks.
    **dict.fromkeys(("a100", "a100_pair_nvlink", "a100_pairwise_nvlink"), "NVIDIA A100 80GB PCIe"),
    "a100_dgx": "NVIDIA A100-SXM4-80GB",
    **dict.fromkeys(("a40", "a40_pairwise_nvlink"), "NVIDIA A40"),
    **dict.fromkeys(
        ("h100", "h100_pair_nvlink", "h100_pairwise_nvlink", "h100_dgx"), "NVIDIA H100 80GB HBM3"
    ),
}
"""Folder -> device name as reported by its driver."""


def read_profiles(path: Path) -> pd.DataFrame:
    """Return a valid run table with one row per layer and size; rows without a time are left out.

    Raises RunTableError if a column is missing.
    """
    table = read_table(path, MODEL_COLUMNS)
    table.columns = [column.removeprefix("time_stats.") for column in table.columns]
    require(table, MODEL_COLUMNS, path, "an MLP profile of Vidur")
    timed = [layer for layer in LAYERS if f"{layer}.median" in table]
    require(table, [f"{layer}.median" for layer in timed or LAYERS[:1]], path, "a profile of Vidur")

    # One block of rows per layer; each row remembers the row of the profile that it comes from.
    has_post_norm = "post_attention_layernorm" in timed
    layers = concatenated_rows([layer_rows(table, layer, has_post_norm) for layer in timed])
    origin = _origin(table, path).iloc[layers.pop("row")].reset_index(drop=True)
    runs = with_specs(concatenated_rows([layers.assign(**origin)]))
    valid, _ = valid_rows(runs[ordered_columns(runs.columns)], "imported rows")
    return valid


def _origin(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    rows = len(table)
    return pd.DataFrame(
        {
            "device": relabel(table["device"], lambda name: DEVICES[name]),
            "status": constant(Status.OK.value, rows),
            "config.format": constant("fp16", rows),
            "config.backend": constant("vidur", rows),
            "source": concatenated_text(constant(f"vidur {path.name}", rows), table["model"]),
            "environment": constant("vidur", rows),
        }
    )


def layer_rows(table: pd.DataFrame, layer: str, has_post_norm: bool) -> pd.DataFrame:
    """Return the runs of one layer; ``row`` is the profile row they come from.

    Models without any time of this layer lack the layer, so they have no rows. Only models with RMS
    norm have a second norm, so ``has_post_norm`` decides the kind of norm.
    """
    time_ms = table[f"{layer}.median"].astype(float)
    there = _has_times(table, time_ms).to_numpy()
    if sizes := _projections(table).get(layer):
        kernel = "gemm"
        tokens = "problem.M"
        columns: dict[str, object] = dict(zip(("problem.N", "problem.K"), sizes, strict=True))
    else:
        kernel = "norm" if layer.endswith("layernorm") else "elementwise"
        tokens = "problem.rows"
        columns = _rowwise(table, layer, has_post_norm)
    rows = pd.DataFrame({tokens: table["num_tokens"], **columns})
    rows["time_ms"], rows["row"] = time_ms, np.arange(len(table))
    rows = rows[there].reset_index(drop=True)
    rows["kernel"] = constant(kernel, len(rows))
    rows["config.implementation"] = constant(layer, len(rows))
    return rows


def _projections(table: pd.DataFrame) -> Mapping[str, tuple["pd.Series[int]", "pd.Series[int]"]]:
    """Return N and K of each projection."""
    width = table["n_embd"]
    hidden = table["n_expanded_embd"]
    tp = table["num_tensor_parallel_workers"]
    head_dim = width // table["n_head"]
    up = hidden * np.where(table["use_gated_mlp"].astype(bool), 2, 1)
    return {
        "attn_pre_proj": ((table["n_head"] + 2 * table["n_kv_head"]) * head_dim // tp, width),
        "attn_post_proj": (width, table["n_head"] * head_dim // tp),
        "mlp_up_proj": (up // tp, width),
        "mlp_down_proj": (width, hidden // tp),
    }


def _rowwise(table: pd.DataFrame, layer: str, has_post_norm: bool) -> dict[str, object]:
    width = table["n_embd"]
    tp = table["num_tensor_parallel_workers"]
    columns = width
    op = constant({"emb": "embedding", "attn_rope": "rope"}.get(layer, layer), len(table))
    if layer == "mlp_act":
        columns = table["n_expanded_embd"] // tp
        op = pd.Categorical(np.where(table["use_gated_mlp"].astype(bool), "silu_and_mul", "gelu"))
    elif layer == "attn_rope":  # queries and keys
        columns = (table["n_head"] + table["n_kv_head"]) * (width // table["n_head"]) // tp
    elif layer.endswith("layernorm"):
        rms = np.zeros(len(table), dtype=bool)
        if has_post_norm:
            rms = _has_times(table, table["post_attention_layernorm.median"]).to_numpy()
        op = pd.Categorical(np.where(rms, "rms_norm", "layer_norm"))
    return {"problem.columns": columns, "problem.op": op, "config.tp": tp}


def _has_times(table: pd.DataFrame, time_ms: "pd.Series[float]") -> "pd.Series[bool]":
    """Return, for every row, whether its model has any time of this layer."""
    timed = time_ms.notna()
    return timed.groupby(table["model"], observed=True).transform("any")
