"""Operator kinds and the columns that identify a measurement."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import pandas as pd

from foretune.family import Family
from foretune.plan.cost.attention_families import (
    DECODE,
    MODULES,
    PREFILL,
    RECURRENT,
    LatentDecode,
    LatentPrefill,
    LatentProjection,
    Recurrent,
    SparseAttention,
)
from foretune.registry import load, registered


@dataclass(frozen=True)
class OperatorKind:
    """How operators of one kernel are told apart.

    Attributes:
        axes: size columns -> default for tables that lack them.
        exact: text columns that must match, most informative first -> default.
        tiled_axis: axis along which kernels compute whole tiles, if any.
        split_axis: axis along which work can be split into equal parts, if any.
        strict: whether measurements with other ``exact`` values are unrelated work.
        load_axis: axis along which times should not fall, if any.
    """

    axes: Mapping[str, float]
    exact: Mapping[str, str] = field(default_factory=dict)
    tiled_axis: str = ""
    split_axis: str = ""
    strict: bool = False
    load_axis: str = ""

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

        Tables hold sizes that fill tiles, and sizes just above them. A predictor would treat sizes
        in between as the latter, which are the slowest.
        """
        if not self.tiled_axis:
            return rows
        size = rows[self.tiled_axis].to_numpy(dtype=float)
        rounded = TILE * np.ceil(size / TILE)
        return rows.assign(**{self.tiled_axis: np.where(size < MIN_TILED_SIZE, size, rounded)})


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
_FORMAT = {"config.format": "bf16"}
_FORMAT_AND_KV = {"config.format": "bf16", "config.kv_format": "bf16"}
_MODULE_FORMATS = {"problem.shape": "", "config.gemm_format": "bf16", "config.kv_format": "bf16"}
_HEADS = {"problem.heads": 1.0, "problem.kv_heads": 1.0, "problem.head_dim": 128.0,
          "problem.window": 0.0}  # fmt: skip
_COLLECTIVE = OperatorKind(
    {"problem.message_bytes": 1.0, "problem.devices": 1.0}, load_axis="problem.message_bytes"
)
_RECURRENT = OperatorKind(
    {
        "problem.batch": 1.0,
        "problem.seq_len": 1.0,
        "problem.num_k_heads": 16.0,
        "problem.head_k_dim": 128.0,
        "problem.num_v_heads": 32.0,
    },
    {"problem.op": "", "problem.phase": ""},
    strict=True,
)
_ROWS = OperatorKind({"problem.rows": 1.0, "problem.columns": 1.0}, {"problem.op": ""})

KINDS: dict[str, OperatorKind] = {
    "gemm": OperatorKind(
        {"problem.M": 1.0, "problem.N": 1.0, "problem.K": 1.0}, _FORMAT, tiled_axis="problem.M",
        load_axis="problem.M",
    ),
    "attention_prefill": OperatorKind(
        {"problem.batch": 1.0, "problem.seq_len": 1.0, "problem.prefix_len": 0.0, **_HEADS},
        _FORMAT_AND_KV,
        split_axis="problem.batch", load_axis="problem.batch",
    ),
    "attention_decode": OperatorKind(
        {"problem.batch": 1.0, "problem.kv_len": 1.0, **_HEADS}, _FORMAT_AND_KV,
        split_axis="problem.batch", load_axis="problem.batch",
    ),
    "mla_prefill": OperatorKind(
        {"problem.batch": 1.0, "problem.seq_len": 1.0, "problem.prefix_len": 0.0,
         "problem.heads": 1.0}, _FORMAT_AND_KV,
        split_axis="problem.batch", load_axis="problem.batch",
    ),
    "mla_decode": OperatorKind(
        {"problem.batch": 1.0, "problem.kv_len": 1.0, "problem.heads": 1.0}, _FORMAT_AND_KV,
        split_axis="problem.batch", load_axis="problem.batch",
    ),
    "mla_bmm": OperatorKind(
        {"problem.tokens": 1.0, "problem.heads": 1.0}, _FORMAT, load_axis="problem.tokens"
    ),
    "moe": OperatorKind(
        {"problem.tokens": 1.0, "problem.hidden": 1.0, "problem.intermediate": 1.0,
         "problem.top_k": 1.0, "problem.experts": 1.0, "config.tp": 1.0, "config.ep": 1.0},
        {**_FORMAT, "problem.distribution": "power_law_1.2", "config.experts": "gated"},
        load_axis="problem.tokens",
    ),
    "all_reduce": _COLLECTIVE,
    "all_gather": _COLLECTIVE,
    "all_to_all": _COLLECTIVE,
    "reduce_scatter": _COLLECTIVE,
    "send_recv": _COLLECTIVE,
    "gdn": _RECURRENT,
    "kda": _RECURRENT,
    "mamba2": _RECURRENT,
    PREFILL: OperatorKind(
        {"problem.batch": 1.0, "problem.seq_len": 1.0, "problem.prefix_len": 0.0,
         "problem.heads": 1.0}, _MODULE_FORMATS,
        split_axis="problem.batch", load_axis="problem.batch",
    ),
    DECODE: OperatorKind(
        {"problem.batch": 1.0, "problem.kv_len": 1.0, "problem.heads": 1.0}, _MODULE_FORMATS,
        split_axis="problem.batch", load_axis="problem.batch",
    ),
    "quantize": OperatorKind({"problem.M": 1.0, "problem.K": 1.0}, {"problem.op": ""}),
    "norm": _ROWS,
    "elementwise": _ROWS,
}  # fmt: skip
"""Kernel -> its kind; other kernels use the roofline."""

_PLAN_FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(kind() for kind in (LatentPrefill, LatentDecode, LatentProjection)),
        *map(Recurrent, RECURRENT), *map(SparseAttention, MODULES),
    )
}  # fmt: skip


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


def work_share(rows: pd.DataFrame) -> np.ndarray:
    """Return each operator's work relative to its family's cost.

    It is two thirds for experts without a gate. Their predictors learn the difference better
    without knowing it.
    """
    plain = rows["config.experts"] == "plain" if "config.experts" in rows else np.zeros(len(rows))
    return 1.0 - np.asarray(plain, dtype=float) / 3.0


def family_of(kernel: str) -> Family | None:
    """Return the family that computes the work of ``kernel``, or None."""
    if kernel in _PLAN_FAMILIES:
        return _PLAN_FAMILIES[kernel]
    return load("families", kernel)() if kernel in registered("families") else None
