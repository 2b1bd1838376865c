"""Measured deployments: rows of AIConfigurator's sample table.

Its labels are incomplete; assumptions are documented where they are made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from foretune.datasets.importers.files import read_table, require
from foretune.errors import ForetuneError
from foretune.plan.describe.catalog import find_system
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, find_format, supported
from foretune.plan.describe.layout import Layout, Workload
from foretune.plan.describe.model_catalog import describe_model
from foretune.plan.describe.system import System
from foretune.plan.serve.deployments.deployment import Deployment, Pools

Row = Mapping[str, Any]
"""A row of the table: column -> value, NaN or None if missing."""
COLUMNS = (
    "backend",
    "model_path",
    "system",
    "mode",
    "isl",
    "osl",
    "gemm_quant_mode",
    "moe_quant_mode",
    "batch_size",
    "tp_size",
    "silicon_ttft_ms",
    "silicon_tpot_ms",
)
POSITIVE = ("isl", "osl", "silicon_tpot_ms", "silicon_ttft_ms")
"""Columns that must be positive; otherwise a row is excluded."""
LENGTH_SHARE = 0.9
"""InferenceX draws each length uniformly between 0.8 times its nominal value and the nominal
value."""
MAX_TP = 8
"""Maximum tensor parallelism of attention in the table.

Larger labels include attention-DP ranks, over all of which experts are distributed.
"""


@dataclass(frozen=True)
class MeasuredDeployments:
    """Deployments and their measured latencies, in the same order."""

    deployments: list[Deployment]
    measured: pd.DataFrame  # ``tpot_ms`` and ``ttft_ms``
    groups: np.ndarray  # number of each row's configuration; rows of one differ only in load
    rows: np.ndarray  # row numbers in the table
    excluded: int  # number of rows without a concurrency, batch or latency
    unknown: int  # number of rows of an unknown model or system

    @property
    def models(self) -> np.ndarray:
        """Architecture of each row; checkpoints of one architecture are one model."""
        return np.array([d.architecture for d in self.deployments], dtype=str)


def read_measured_deployments(path: Path) -> MeasuredDeployments:
    """Return the measured deployments of a table; raises WrongFile for another table."""
    table = read_table(path, list(COLUMNS)).reset_index(drop=True)
    require(table, list(COLUMNS), path, "a table of measured deployments")
    # Rows that lack a number, or whose model or system is unknown, are counted and left out.
    kept_rows: list[int] = []
    deployments: list[Deployment] = []
    excluded = 0
    unknown = 0
    for number, row in enumerate(table.to_dict("records")):
        if not _is_complete(row):
            excluded += 1
            continue
        try:
            deployment = _deployment(row)
        except ForetuneError:
            unknown += 1
            continue
        deployments.append(deployment)
        kept_rows.append(number)

    rows = table.iloc[kept_rows]
    latencies = rows[["silicon_tpot_ms", "silicon_ttft_ms"]].astype(float)
    latencies = latencies.rename(columns=lambda name: name.removeprefix("silicon_"))
    return MeasuredDeployments(
        deployments=deployments,
        measured=latencies.reset_index(drop=True),
        groups=_groups(rows),
        rows=rows.index.to_numpy(),
        excluded=excluded,
        unknown=unknown,
    )


def _is_complete(row: Row) -> bool:
    """Return whether all numbers that a row needs are known and positive."""
    numbers = [_number(row, name) for name in POSITIVE]
    numbers.append(_concurrency(row) or 0.0)
    return all(0 < number < np.inf for number in numbers)


def _groups(rows: pd.DataFrame) -> np.ndarray:
    """Return the number of each row's configuration, which is everything but load and results."""
    if "config_group" in rows:
        return rows["config_group"].to_numpy()
    config_columns = [c for c in rows if not c.startswith(("silicon_", "batch_size", "measured_"))]
    return rows.groupby(config_columns, dropna=False).ngroup().to_numpy()


def _deployment(row: Row) -> Deployment:
    """Return the deployment that a row's labels describe."""
    model = _model(row["model_path"])
    system = _system(row["system"])
    pools = _pools(model, row)

    # InferenceX keeps requests in flight; other sources send them in waves.
    is_inferencex = "inferencex" in str(row.get("source_kind", "inferencex"))
    length_share = LENGTH_SHARE if is_inferencex else 1.0
    load: Literal["steady", "burst"] = "steady" if is_inferencex else "burst"
    workload = Workload(
        isl=max(round(length_share * row["isl"]), 1), osl=max(round(length_share * row["osl"]), 1)
    )

    return Deployment(
        model=model,
        system=system,
        backend=str(row["backend"]),
        layout=_layout(model, row, prefix="decode_" if pools else ""),
        formats=_formats(model, row, system),
        workload=workload,
        concurrency=_concurrency(row) or 1.0,
        pools=pools,
        load=load,
        speculative=_is_speculative(row),
        version=_version(row),
    )


def _pools(model: ModelDescription, row: Row) -> Pools | None:
    """Return a row's separate pools, if it has any."""
    if row["mode"] != "disagg":
        return None
    return Pools(
        prefill=_layout(model, row, prefix="prefill_"),
        prefill_workers=int(_number(row, "prefill_num_workers")),
        decode_workers=max(int(_number(row, "decode_num_workers")), 1),
    )


def _version(row: Row) -> str:
    """Return the engine's version; if unlabeled, the month of the measurement."""
    version = _text(row, "backend_version")
    month = _text(row, "measured_date")[:7]
    if version or not month:
        return version
    return f"of {month}"


def _is_speculative(row: Row) -> bool:
    """Return whether the row's engine drafted tokens; this is inferred, as no label states it.

    In one source, runs labeled DeepSeek-R1 need a third less time per token than runs of the same
    architecture, engine and layout labeled DeepSeek-V3. Drafting is the only plausible cause.
    """
    is_r1 = str(row["model_path"]).endswith("DeepSeek-R1")
    is_that_source = "csv" in str(row.get("source_kind", ""))
    return is_r1 and row["backend"] == "trtllm" and is_that_source


def _concurrency(row: Row) -> float | None:
    """Return the requests in flight: labeled, or from the batch per rank; None if neither.

    For separate pools, it is unknown if the number of workers is unknown.
    """
    labeled = _number(row, "silicon_concurrency")
    if row["mode"] == "disagg":
        workers = _number(row, "decode_num_workers")
        if not workers:
            return None
        groups = workers * max(_number(row, "decode_attention_dp_size"), 1.0)
        return labeled or _number(row, "decode_batch_size") * groups or None

    groups = max(_number(row, "attention_dp_size"), 1.0)
    return labeled or _number(row, "batch_size") * groups or None


def _layout(model: ModelDescription, row: Row, prefix: str) -> Layout:
    """Return the layout of a row; ``prefix`` is that of a pool's columns."""
    tp = _degree(row, f"{prefix}tp_size")
    pp = _degree(row, f"{prefix}pp_size")
    dp = _degree(row, f"{prefix}attention_dp_size")
    moe_tp = _degree(row, f"{prefix}moe_tp_size")
    moe_ep = _degree(row, f"{prefix}moe_ep_size")
    if model.is_moe and tp > MAX_TP and dp == 1 and (moe_tp == 1 or moe_ep == 1):
        return Layout(tp=1, pp=pp, dp=tp, moe_tp=1, moe_ep=tp)
    return Layout.from_labels(model, tp=tp, pp=pp, dp=dp, moe_tp=moe_tp, moe_ep=moe_ep)


def _degree(row: Row, column: str) -> int:
    """Return a degree of parallelism; 1 if missing."""
    return int(max(_number(row, column), 1.0))


def _formats(model: ModelDescription, row: Row, system: System) -> Formats:
    """Return the formats that the labels stand for."""
    weights = _text(row, "gemm_quant_mode") or "bf16"
    moe = _text(row, "moe_quant_mode") or "bf16"
    is_quantized = weights != "bf16" or moe != "bf16"

    # Models with experts published in MXFP4 are served in it, whatever the label.
    if model.moe_format == "mxfp4":
        native = supported("w4a8_mxfp4_mxfp8", system.device.architecture) == "native"
        weights = "bf16"
        moe = "w4a8_mxfp4_mxfp8" if native else "mxfp4"
    # NVFP4 checkpoints with latent attention keep its projections in 16 bits.
    if weights == "nvfp4" and model.mla:
        weights = "bf16"
    # Either label may be that of a dense model's MLPs.
    if not model.is_moe:
        moe = min(weights, moe, key=lambda name: find_format(name).bytes)
    return Formats(weights=weights, kv="fp8" if is_quantized else "bf16", moe=moe)


_model = lru_cache(describe_model)
_system = lru_cache(find_system)


def _number(row: Row, column: str) -> float:
    """Return a number of a row; 0 if missing."""
    value = row.get(column)
    return 0.0 if value is None or pd.isna(value) else float(value)


def _text(row: Row, column: str) -> str:
    value = row.get(column)
    return "" if value is None or pd.isna(value) else str(value)
