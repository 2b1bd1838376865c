"""Vidur: profiles of layers, attention and collectives."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.importers.columns import (
    concatenated_rows,
    concatenated_text,
    constant,
    device_of_system,
    relabel,
)
from foretune.datasets.importers.files import Request, WrongFile, read_table, require
from foretune.errors import RunTableError
from foretune.measurement import Status

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


def layer_rows(table: pd.DataFrame, layer: str, has_post_norm: bool) -> pd.DataFrame:
    """Return the runs of one layer; ``row`` is the profile row they come from.

    Models without any time of this layer lack the layer, so they have no rows. Only models with RMS
    norm have a second norm, so ``has_post_norm`` decides the kind of norm.
    """
    time_ms = table[f"{layer}.median"].astype(float)
    there = _has_times(table, time_ms).to_numpy()
    if sizes := _projections(table).get(layer):
        kernel, tokens = "gemm", "problem.M"
        columns: dict[str, object] = dict(zip(("problem.N", "problem.K"), sizes, strict=True))
    else:
        kernel = "norm" if layer.endswith("layernorm") else "elementwise"
        tokens, columns = "problem.rows", _rowwise(table, layer, has_post_norm)
    rows = pd.DataFrame({tokens: table["num_tokens"], **columns})
    rows["time_ms"], rows["row"] = time_ms, np.arange(len(table))
    rows = rows[there].reset_index(drop=True)
    rows["kernel"] = constant(kernel, len(rows))
    rows["config.implementation"] = constant(layer, len(rows))
    return rows


def _projections(table: pd.DataFrame) -> Mapping[str, tuple["pd.Series[int]", "pd.Series[int]"]]:
    """Return N and K of each projection."""
    width, hidden = table["n_embd"], table["n_expanded_embd"]
    tp, head_dim = table["num_tensor_parallel_workers"], width // table["n_head"]
    up = hidden * np.where(table["use_gated_mlp"].astype(bool), 2, 1)
    return {
        "attn_pre_proj": ((table["n_head"] + 2 * table["n_kv_head"]) * head_dim // tp, width),
        "attn_post_proj": (width, table["n_head"] * head_dim // tp),
        "mlp_up_proj": (up // tp, width),
        "mlp_down_proj": (width, hidden // tp),
    }


def _rowwise(table: pd.DataFrame, layer: str, has_post_norm: bool) -> dict[str, object]:
    width, tp = table["n_embd"], table["num_tensor_parallel_workers"]
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
    if "model" not in table:
        return pd.Series(timed.any(), index=table.index)
    return timed.groupby(table["model"], observed=True).transform("any")


MODEL_COLUMNS = (
    "n_head",
    "n_kv_head",
    "n_embd",
    "n_expanded_embd",
    "use_gated_mlp",
    "num_tokens",
    "num_tensor_parallel_workers",
)
ATTENTION_COLUMNS = (
    "n_embd",
    "n_q_head",
    "n_kv_head",
    "num_tensor_parallel_workers",
    "batch_size",
    "prefill_chunk_size",
    "kv_cache_size",
    "is_prefill",
)
NETWORK_COLUMNS = ("collective", "num_workers", "size", "devices_per_node", "max_devices_per_node")

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


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per layer or collective, and size; copies between layers are left out."""
    table = read_table(path, MODEL_COLUMNS)
    table.columns = [c.removeprefix("time_stats.") for c in table.columns]
    if "is_prefill" in table:
        require(table, ATTENTION_COLUMNS, path, "an attention profile of Vidur")
        rows = _attention(table)
    elif "collective" in table:
        require(table, NETWORK_COLUMNS, path, "a profile of a collective of Vidur")
        rows = _collective(table, path)
    elif "n_expanded_embd" in table:
        require(table, MODEL_COLUMNS, path, "an MLP profile of Vidur")
        rows = _layers(table, path)
    else:
        raise WrongFile(
            f"{path} is not a Vidur profile: expected columns of mlp.csv ({MODEL_COLUMNS[3]}, …), "
            f"attention.csv (is_prefill, …) or of a collective ({', '.join(NETWORK_COLUMNS)})"
        )
    origin = _origin(table, path, request).iloc[rows.pop("row")].reset_index(drop=True)
    rows = rows.assign(**origin)
    if request.kernel:
        rows = rows[rows["kernel"] == request.kernel].reset_index(drop=True)
    return rows


def _layers(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    timed = [layer for layer in LAYERS if f"{layer}.median" in table]
    if not timed:
        require(table, [f"{LAYERS[0]}.median"], path, "an MLP profile of Vidur")
    has_post_norm = "post_attention_layernorm" in timed
    return concatenated_rows([layer_rows(table, layer, has_post_norm) for layer in timed])


def _attention(table: pd.DataFrame) -> pd.DataFrame:
    parts = []
    tp = table["num_tensor_parallel_workers"]
    prefill = table["is_prefill"].astype(bool)
    backend = (
        relabel(table["attention_backend"], lambda name: name.rpartition(".")[2].lower())
        if "attention_backend" in table
        else constant("attention", len(table))
    )
    common = {
        "problem.batch": table["batch_size"],
        "problem.heads": table["n_q_head"] // tp,
        "problem.kv_heads": table["n_kv_head"] // tp,
        "problem.head_dim": table["n_embd"] // table["n_q_head"],
        "config.implementation": backend,
    }
    prefill_sizes = {"seq_len": table["prefill_chunk_size"], "prefix_len": table["kv_cache_size"]}
    decode_sizes = {"kv_len": table["kv_cache_size"] + 1}  # the decoded token sees itself too
    for kernel, chosen, sizes in (
        ("attention_prefill", prefill, prefill_sizes),
        ("attention_decode", ~prefill, decode_sizes),
    ):
        column = f"attn_{kernel.partition('_')[2]}.median"
        time_ms = table[column] if column in table else pd.Series(np.nan, table.index)
        part = pd.DataFrame({**common, **{f"problem.{k}": v for k, v in sizes.items()}})[chosen]
        part["time_ms"] = time_ms.astype(float)[chosen]
        part["row"] = np.flatnonzero(chosen)
        part = part.reset_index(drop=True)
        parts.append(
            part.assign(
                **{
                    "kernel": constant(kernel, len(part)),
                    "problem.window": 0,
                    "config.kv_format": constant("fp16", len(part)),
                }
            )
        )
    return concatenated_rows([p for p in parts if len(p)] or parts[:1])


def _collective(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    names = [str(n) for n in table["collective"].astype("category").cat.categories]
    one = f"{names[0]}.median" if len(names) == 1 else "median"
    column = one if one in table else "median"
    require(table, [column], path, "a profile of a collective of Vidur")
    return pd.DataFrame(
        {
            "kernel": relabel(table["collective"], str),
            "problem.message_bytes": table["size"].astype(float),
            "problem.devices": table["num_workers"],
            "problem.devices_per_node": table["devices_per_node"],
            "problem.max_devices_per_node": table["max_devices_per_node"],
            "config.implementation": constant("NCCL", len(table)),
            "time_ms": table[column].astype(float),
            "row": np.arange(len(table)),
        }
    )


def _origin(table: pd.DataFrame, path: Path, request: Request) -> pd.DataFrame:
    rows = len(table)
    source = constant(f"vidur {path.name}", rows)
    if "model" in table:
        source = concatenated_text(source, table["model"])
    elif (model := _model(path)) is not None:
        source = constant(f"vidur {path.name} {model}", rows)
    return pd.DataFrame(
        {
            "device": _device(table, path, request),
            "status": constant(Status.OK.value, rows),
            "config.format": constant("fp16", rows),
            "config.backend": constant("vidur", rows),
            "source": source,
            "environment": constant("vidur", rows),
        }
    )


def _device(table: pd.DataFrame, path: Path, request: Request) -> "pd.Series[str]":
    if request.device:
        return constant(request.device, len(table))
    for column in ("device", "network_device"):
        if column in table:
            return relabel(table[column], lambda n: DEVICES.get(n) or device_of_system(n))
    # Nearest folder first; else a word of the file's name, as in `attention_a100.parquet`.
    words = [*reversed(path.resolve().parts[:-1]), *path.name.partition(".")[0].split("_")]
    named = [DEVICES[w] for w in words if w in DEVICES]
    if not named:
        raise RunTableError(f"{path} does not name its device: give --device NAME")
    return constant(named[0], len(table))


def _model(path: Path) -> str | None:
    """Return ``ORGANISATION/MODEL`` from ``…/compute/DEVICE/ORGANISATION/MODEL/mlp.csv``."""
    folders = path.resolve().parts[:-1]
    return "/".join(folders[-2:]) if len(folders) > 2 and folders[-3] in DEVICES else None
