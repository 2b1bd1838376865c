"""Kinds of operators: the run-table columns that say where a measurement of one lies."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from foretune.family import Family
from foretune.features.arrays import as_array
from foretune.plan.cost.attention_modules import DECODE, MODULES, PREFILL
from foretune.plan.cost.latent_attention import (
    LatentDecode,
    LatentPrefill,
    LatentProjection,
)
from foretune.plan.cost.recurrent_attention import RECURRENT
from foretune.registry import load, registered


@dataclass(frozen=True)
class OperatorKind:
    """How operators of one kernel are told apart.

    Attributes:
        axes: run-table columns of sizes -> the value that stands where a table lacks them.
        exact: columns of text that must agree with a measurement, the most telling one first.
        tiled_axis: an axis along which kernels compute whole tiles, or none.
        split_axis: an axis along which work may be cut: many of them take as long as one as large.
        strict: whether others that do not agree tell nothing: they are different work.
        load_axis: an axis along which times should not fall, or none.
    """

    axes: Mapping[str, float]
    exact: Mapping[str, str] = field(default_factory=dict)
    tiled_axis: str = ""
    split_axis: str = ""
    strict: bool = False
    load_axis: str = ""

    def coordinates(self, rows: pd.DataFrame) -> np.ndarray:
        """Return where operators lie (rows, axes)."""
        columns = []
        for column, missing in self.axes.items():
            known = column in rows
            values = as_array(rows[column]) if known else np.full(len(rows), missing)
            columns.append(np.log2(np.nan_to_num(values, nan=missing) + self._log_offset(column)))
        return np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0))

    def keys(self, rows: pd.DataFrame) -> "pd.Series[str]":
        """Return the text of the exact columns, joined; what a table lacks is its default."""
        total = None
        for column, missing in self.exact.items():
            if column in rows:
                values = rows[column].astype(object)
                filled = values.where(values.notna(), missing)
            else:
                filled = pd.Series(missing, index=rows.index, dtype=object)
            total = filled if total is None else total + "/" + filled
        return pd.Series("", index=rows.index, dtype=object) if total is None else total

    def fill_missing(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return ``rows`` with all columns of the kind, what a table lacks filled in."""
        filled = dict[str, object]()
        for column, missing in self.axes.items():
            known = column in rows
            filled[column] = rows[column].astype(float).fillna(missing) if known else missing
        for column, text in self.exact.items():
            known = column in rows
            filled[column] = rows[column].astype(object).fillna(text) if known else text
        return rows.assign(**filled)

    def round_up_to_tiles(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return ``rows`` with large sizes along the tiled axis rounded up to whole tiles.

        There, tables hold the sizes that fill tiles and those that begin another one. A predictor
        would read a size between as one of the latter, which are the slowest.
        """
        if not self.tiled_axis:
            return rows
        size = rows[self.tiled_axis].to_numpy(dtype=float)
        rounded = TILE * np.ceil(size / TILE)
        return rows.assign(**{self.tiled_axis: np.where(size < MIN_TILED_SIZE, size, rounded)})

    @staticmethod
    def _log_offset(column: str) -> float:
        """Sizes that may be 0 lie a place apart from 1, others where their logarithm is."""
        return LOG_OFFSETS.get(column, 0.0)


LOG_OFFSETS = {"problem.prefix_len": 64.0, "problem.window": 64.0}
"""What is added to sizes that may be 0: differences far below it do not count."""
TILE = 128
MIN_TILED_SIZE = 8 * TILE
"""Sizes from which tiles are rounded up to."""
UNGATED_NAME = "nongated"
"""In the name of an implementation whose experts have no gate."""
MIN_LATENCY_NAME = "min_latency"
"""In the name of an implementation that TensorRT-LLM runs only where it is asked to
(``enable_min_latency``, off by default)."""
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
        {"problem.batch": 1.0, "problem.seq_len": 1.0, "problem.prefix_len": 0.0, **_HEADS}, _FORMAT_AND_KV,
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
"""Kernel -> its kind; operators of other kernels take their roofline."""

_PLAN_FAMILIES: tuple[type[Family], ...] = (
    LatentPrefill, LatentDecode, LatentProjection, *RECURRENT, *MODULES,
)  # fmt: skip


def with_expert_kind(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rows`` and whether their experts are gated, if they are of implementations.

    A gated expert has three matrices, any other two: what engines' tables tell by the name alone.
    Rows of kernels that engines do not run by themselves (`MIN_LATENCY_NAME`) are left out.
    """
    if "config.implementation" not in rows:
        return rows
    names = rows["config.implementation"].astype(str)
    by_default, plain = ~names.str.contains(MIN_LATENCY_NAME), names.str.contains(UNGATED_NAME)
    return rows.assign(**{"config.experts": np.where(plain, "plain", "gated")})[by_default]


def work_share(rows: pd.DataFrame) -> np.ndarray:
    """Return which share of what its family says each operator's work is.

    Two thirds for experts without a gate, which the family of experts does not tell apart: their
    predictors learn the difference, and learn worse from a cost that knows it.
    """
    plain = rows["config.experts"] == "plain" if "config.experts" in rows else np.zeros(len(rows))
    return 1.0 - np.asarray(plain, dtype=float) / 3.0


def family_of(kernel: str) -> Family | None:
    """Return what is known about the work of operators of ``kernel``, or None."""
    for family in _PLAN_FAMILIES:
        if family.name == kernel:
            return family()
    return load("families", kernel)() if kernel in registered("families") else None
