"""Deployments: a model served on a system by an engine under a load; measured deployments.

Measured ones are rows of AIConfigurator's sample table. Its labels are incomplete; assumptions are
documented where they are made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from foretune.datasets.importers.files import read_table, require
from foretune.errors import ForetuneError
from foretune.plan.cost.memory import (
    GIB,
    MAX_STEP_TOKENS,
    RankMemory,
    expert_multiples,
    layer_bytes,
    max_requests,
    rank_memory,
    request_bytes,
)
from foretune.plan.describe.catalog import find_system
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.engines import ENGINES
from foretune.plan.describe.formats import Formats, find_format, supported
from foretune.plan.describe.layout import Layout, Offload, Speculation, Workload
from foretune.plan.describe.model_catalog import describe_model
from foretune.plan.describe.system import System


@dataclass(frozen=True)
class Pools:
    """Separate workers for prefill and decode (disaggregation)."""

    prefill: Layout
    prefill_workers: int = 0  # their number; 0 means as many as are needed
    decode_workers: int = 1  # workers with the deployment's own layout


@dataclass(frozen=True)
class Deployment:
    """A model on a system, with its engine, layout, formats and load.

    The load is ``steady`` if each finished request is replaced, ``burst`` if requests start in
    waves or one by one, as some benchmarks send them.
    """

    model: ModelDescription
    system: System
    backend: str
    layout: Layout
    formats: Formats
    workload: Workload
    concurrency: float  # requests in flight of the replica (of all workers of ``pools``)
    pools: Pools | None = None
    load: Literal["steady", "burst"] = "steady"
    speculative: bool = False  # a measured deployment drafts tokens; the method is unknown
    version: str = ""  # engine version; empty if unknown
    speculation: Speculation | None = None  # how a planned deployment drafts tokens
    offload: Offload = Offload()  # noqa: RUF009  # immutable
    max_request_tokens: int = 0  # of the longest request, if longer than in ``workload``
    step_tokens: int = MAX_STEP_TOKENS  # maximum tokens of a step
    replicas: int = 1  # equal copies, each with these requests

    @property
    def architecture(self) -> str:
        """Architecture shared by all checkpoints of a model."""
        model = self.model
        return f"{model.layers}x{model.hidden} {model.heads}h {model.experts}e {model.vocab}v"

    @property
    def gpus(self) -> int:
        """GPUs of the replica, including all workers of ``pools``."""
        if self.pools is None:
            return self.layout.gpus
        prefill_gpus = self.pools.prefill_workers * self.pools.prefill.gpus
        return prefill_gpus + self.pools.decode_workers * self.layout.gpus

    @property
    def prefill_layout(self) -> Layout:
        """The layout of a worker that prefills."""
        return self.pools.prefill if self.pools else self.layout

    @property
    def longest_context(self) -> int:
        """Cached tokens when the longest request ends."""
        return max(self.max_request_tokens, self.workload.last_context)

    @property
    def requests_per_worker(self) -> float:
        """Requests in flight per decode worker."""
        return self.concurrency / (self.pools.decode_workers if self.pools else 1)

    @property
    def batch(self) -> float:
        """Requests in flight per worker and attention-DP group."""
        return max(self.requests_per_worker / self.layout.dp, 1.0)

    @cached_property
    def loaded_model(self) -> ModelDescription:
        """The model as its engine loads it, including its drafter.

        By default, TensorRT-LLM allocates the full context for layers with a window
        (``max_attention_window``).
        """
        model = self.speculation.with_drafter(self.model) if self.speculation else self.model
        if model.is_moe:
            multiples = expert_multiples(self.system.device.architecture)
            model = replace(model, expert_multiples=multiples)
        if self.backend != "trtllm":
            return model
        return replace(model, sliding_window=0)

    @property
    def drafted(self) -> int:
        """Drafted tokens per request and step."""
        return self.speculation.drafted if self.speculation else 0

    @property
    def accepted_tokens(self) -> float:
        """Mean tokens per request and step."""
        return self.speculation.accepted_tokens if self.speculation else 1.0

    @cached_property
    def offloaded_weight_bytes(self) -> float:
        """Bytes of the fullest rank's weights in host memory; embeddings stay on the GPU."""
        if not self.offload.weights_gib:
            return 0.0
        layers = sum(layer_bytes(self.model, self.layout, self.formats))
        return min(self.offload.weights_gib * GIB, layers)

    @cached_property
    def max_requests(self) -> int:
        """Requests of a replica that fit in memory; 0 if the model does not fit."""
        return max_requests(
            self.loaded_model,
            self.layout,
            self.formats,
            self.workload,
            self.system.memory_gib,
            offloaded_bytes=self.offloaded_weight_bytes,
        )

    def memory(self, requests: Any, layout: Layout | None = None) -> RankMemory:
        """Return the memory of a worker's fullest rank with ``requests``, see `rank_memory`."""
        return rank_memory(
            self.loaded_model,
            layout or self.layout,
            self.formats,
            self.workload,
            requests,
            offloaded_bytes=self.offloaded_weight_bytes,
            step_tokens=self.step_tokens,
        )

    def weight_wait_ms(self, tokens: float) -> float:
        """Return how long a step waits for weights in host memory, in all stages.

        ``tokens`` are those of an attention-DP group. Weights are offloaded layer by layer, so
        dense and expert weights have equal shares.
        """
        size, model = self.offloaded_weight_bytes, self.model
        if size and model.is_moe and ENGINES[self.backend]["reads_host_weights"]:
            dense, experts = layer_bytes(model, self.layout, self.formats)
            idle = (1.0 - model.experts_per_token / model.experts) ** (tokens * self.layout.dp)
            size = size * (dense + experts * (1.0 - idle)) / (dense + experts)
        return self.layout.pp * self.system.transfer_ms(size)

    @property
    def prefix_bytes(self) -> float:
        """Bytes of a cached prefix on each rank."""
        prefix = self.workload.prefix
        return request_bytes(self.model, self.layout, self.formats, prefix) if prefix else 0.0

    @property
    def prefix_fetch_ms(self) -> float:
        """Milliseconds to fetch a request's prefix from host memory; 0 if it is not there."""
        return self.system.transfer_ms(self.prefix_bytes) if self.offload.cache_gib else 0.0

    def exposed_fetch_ms(self, prompt_ms: float) -> float:
        """Return how long fetching the prefix delays a request that takes ``prompt_ms`` without."""
        fetch = self.prefix_fetch_ms
        if not ENGINES[self.backend]["fetches_by_layer"]:
            return fetch
        return max(fetch - prompt_ms, fetch / self.model.layers)

    @cached_property
    def max_batch(self) -> float:
        """Requests per attention-DP group that fit in memory; at least one."""
        return max(self.max_requests / self.layout.dp, 1.0)

    @property
    def running(self) -> float:
        """Requests per attention-DP group that run at once; the others wait for memory."""
        return min(self.batch, self.max_batch)


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
    kept_rows, deployments = [], []
    excluded = unknown = 0
    for number, row in enumerate(table.to_dict("records")):
        numbers = [_number(row, name) for name in POSITIVE]
        if not all(0 < n < np.inf for n in (*numbers, _concurrency(row) or 0.0)):
            excluded += 1
            continue
        try:
            deployments.append(_deployment(row))
        except ForetuneError:
            unknown += 1
            continue
        kept_rows.append(number)
    rows = table.iloc[kept_rows]
    measured = rows[["silicon_tpot_ms", "silicon_ttft_ms"]].astype(float)
    measured = measured.rename(columns=lambda name: name.removeprefix("silicon_"))
    return MeasuredDeployments(
        deployments,
        measured.reset_index(drop=True),
        _groups(rows),
        rows.index.to_numpy(),
        excluded,
        unknown,
    )


def _groups(rows: pd.DataFrame) -> np.ndarray:
    if "config_group" in rows:
        return rows["config_group"].to_numpy()
    config_columns = [c for c in rows if not c.startswith(("silicon_", "batch_size", "measured_"))]
    return rows.groupby(config_columns, dropna=False).ngroup().to_numpy()


def _deployment(row: Mapping[str, Any]) -> Deployment:
    model, system = _model(row["model_path"]), _system(row["system"])
    pools, prefix = None, ""
    if row["mode"] == "disagg":
        prefix = "decode_"
        workers = int(_number(row, "decode_num_workers"))
        prompts = int(_number(row, "prefill_num_workers"))
        pools = Pools(_layout(model, row, "prefill_"), prompts, max(workers, 1))
    share = LENGTH_SHARE if "inferencex" in str(row.get("source_kind", "inferencex")) else 1.0
    load: Literal["steady", "burst"] = "steady" if share < 1 else "burst"
    layout, month = _layout(model, row, prefix), _text(row, "measured_date")[:7]
    return Deployment(
        model=model,
        system=system,
        backend=str(row["backend"]),
        layout=layout,
        formats=_formats(model, row, system),
        workload=Workload(max(round(share * row["isl"]), 1), max(round(share * row["osl"]), 1)),
        concurrency=_concurrency(row) or 1.0,
        pools=pools,
        load=load,
        speculative=_is_speculative(row),
        # If unlabeled, the month of the measurement.
        version=_text(row, "backend_version") or (f"of {month}" if month else ""),
    )


def _is_speculative(row: Mapping[str, Any]) -> bool:
    """Return whether the row's engine drafted tokens; this is inferred, as no label states it.

    In one source, runs labeled DeepSeek-R1 need a third less time per token than runs of the same
    architecture, engine and layout labeled DeepSeek-V3. Drafting is the only plausible cause.
    """
    name, source = str(row["model_path"]), str(row.get("source_kind", ""))
    return name.endswith("DeepSeek-R1") and row["backend"] == "trtllm" and "csv" in source


def _concurrency(row: Mapping[str, Any]) -> float | None:
    """Return the requests in flight: labeled, or from the batch per rank; None if neither.

    For separate pools, it is unknown if the number of workers is unknown.
    """
    labeled = _number(row, "silicon_concurrency")
    if row["mode"] == "disagg":
        workers = _number(row, "decode_num_workers")
        groups = workers * max(_number(row, "decode_attention_dp_size"), 1.0)
        rank_batch = _number(row, "decode_batch_size")
        return (labeled or rank_batch * groups or None) if workers else None
    groups = max(_number(row, "attention_dp_size"), 1.0)
    return labeled or _number(row, "batch_size") * groups or None


def _layout(model: ModelDescription, row: Mapping[str, Any], prefix: str) -> Layout:
    tp, pp, dp, moe_tp, moe_ep = (
        int(max(_number(row, f"{prefix}{name}_size"), 1.0))
        for name in ("tp", "pp", "attention_dp", "moe_tp", "moe_ep")
    )
    if model.is_moe and tp > MAX_TP and dp == 1 and (moe_tp == 1 or moe_ep == 1):
        return Layout(1, pp, tp, 1, tp)
    return Layout.from_labels(model, tp, pp, dp, moe_tp, moe_ep)


def _formats(model: ModelDescription, row: Mapping[str, Any], system: System) -> Formats:
    """Return the formats that the labels stand for.

    NVFP4 checkpoints with latent attention keep its projections in 16 bits. Models with experts
    published in MXFP4 are served in it, whatever the label.
    """
    weights, moe = (_text(row, f"{name}_quant_mode") or "bf16" for name in ("gemm", "moe"))
    quantized = weights != "bf16" or moe != "bf16"
    if model.moe_format == "mxfp4":
        native = supported("w4a8_mxfp4_mxfp8", system.device.architecture) == "native"
        weights, moe = "bf16", "w4a8_mxfp4_mxfp8" if native else "mxfp4"
    if weights == "nvfp4" and model.mla:
        weights = "bf16"
    if not model.is_moe:  # either label may be that of a dense model's MLPs
        moe = min(weights, moe, key=lambda name: find_format(name).bytes)
    return Formats(weights=weights, kv="fp8" if quantized else "bf16", moe=moe)


_model, _system = lru_cache(describe_model), lru_cache(find_system)


def _number(row: Mapping[str, Any], column: str) -> float:
    """Return a number of a row; 0 if missing."""
    value = row.get(column)
    return 0.0 if value is None or pd.isna(value) else float(value)


def _text(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    return "" if value is None or pd.isna(value) else str(value)
