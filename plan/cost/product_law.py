"""Times of products and attention on GPUs without published tables of engines: AMD Instinct.

A law of five numbers per architecture and format, fitted to the tunings that AMD ships with aiter
(MIT; ``benchmarks/amd_gemm.py`` prints its errors):

    ms = launch + depth · K + sqrt((memory / memory_share)² + (compute / compute_share)² · ramp)

``memory`` and ``compute`` are the roofline's milliseconds. ``ramp`` is 1 + a constant over the
waves of 128 x 128 tiles: few tiles leave units idle. Without this law, times would be those of
NVIDIA's GPUs at equal shares of the peak rates, and a third too short.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Self

import numpy as np
import pandas as pd

from foretune.device import Device
from foretune.features.families.moe import max_rank_load
from foretune.plan.describe import shipped_rows

TILE = 128
"""Edge of the tiles that the law counts."""
ATTENTION = ("attention_prefill", "attention_decode", "mla_prefill", "mla_decode")
"""Kernels that reach a product's shares of the peak rates. Nothing measured says so."""
LAW_KERNELS = ("gemm", "moe", *ATTENTION)
"""Kernels with a law."""
PADDED_FORMAT = "mxfp4"
PADDED_EDGE = 256
"""ROCm pads both sides of experts in this format to a multiple (vLLM, ``mxfp4.py``)."""
PRODUCTS_OF_EXPERTS = 2
"""Products of a layer of experts: up and down, one after the other."""


@dataclass(frozen=True)
class ProductLaw:
    """The law of one architecture and format.

    Attributes:
        launch_ms: of an empty product.
        memory_share, compute_share: of peak rates, at large sizes.
        ramp: waves of tiles at which half of the squared rate is reached.
        depth_ms: added per thousand elements that are summed one after the other.
    """

    launch_ms: float
    memory_share: float
    compute_share: float
    ramp: float
    depth_ms: float

    def ms(
        self, limits_ms: np.ndarray, tiles: np.ndarray, depth: np.ndarray, cores: float
    ) -> np.ndarray:
        """Return the milliseconds of products.

        Args:
            limits_ms: compute and memory time at peak rates (rows, 2).
            tiles: tiles of the output.
            depth: elements that are summed one after the other.
            cores: compute units.
        """
        compute_ms = limits_ms[:, 0] / self.compute_share
        memory_ms = limits_ms[:, 1] / self.memory_share
        compute_ms = compute_ms * np.sqrt(1.0 + self.ramp * cores / tiles)
        busy_ms = np.hypot(compute_ms, memory_ms)
        return np.asarray(self.launch_ms + self.depth_ms * depth / 1000.0 + busy_ms)

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Self:
        """Return the law of a row of the shipped table."""
        return cls(**{field.name: float(row[field.name]) for field in fields(cls)})


@cache
def shipped_laws() -> dict[tuple[str, str], ProductLaw]:
    """Return the shipped laws by architecture and format; formats with most rows first."""
    rows = shipped_rows("product_laws.csv", "foretune.plan.cost")
    rows.sort(key=lambda row: -int(row["rows"]))
    return {(row["architecture"], row["format"]): ProductLaw.from_row(row) for row in rows}


def has_law(device: Device) -> bool:
    """Return whether products on a device have a law."""
    return any(architecture == device.architecture for architecture, _ in shipped_laws())


def law_of(architecture: str, number_format: str, similar: Mapping[str, list[str]]) -> ProductLaw:
    """Return the law of a format on an architecture that has laws.

    A format without one takes that of its nearest format in ``similar``, else of the format with
    most measurements: what a GPU reaches depends on its maker's kernels more than on the format.
    """
    laws = {form: law for (known, form), law in shipped_laws().items() if known == architecture}
    candidates = [number_format, *similar.get(number_format, []), *laws]
    return next(laws[name] for name in candidates if name in laws)


def law_ms(
    kernel: str,
    rows: pd.DataFrame,
    limits_ms: np.ndarray,
    device: Device,
    similar: Mapping[str, list[str]],
) -> np.ndarray:
    """Return the milliseconds of operators of one of `LAW_KERNELS`, given as run-table rows."""
    tiles, depth, launches = _shape(kernel, rows)
    limits_ms = limits_ms * _padding(kernel, rows)[:, None]
    cores = device.specs.get("cores", 1.0)
    formats = rows["config.format"].astype(str).to_numpy()
    ms = np.zeros(len(rows))
    for name in np.unique(formats):
        of_format = formats == name
        law = law_of(device.architecture, str(name), similar)
        one_launch = law.ms(limits_ms[of_format], tiles[of_format], depth[of_format], cores)
        ms[of_format] = one_launch + (launches - 1) * law.launch_ms
    return ms


def _padding(kernel: str, rows: pd.DataFrame) -> np.ndarray:
    """Return how many times more work operators do because their kernel pads the weights."""
    factor = np.ones(len(rows))
    if kernel != "moe":
        return factor
    padded = rows["config.format"].astype(str).str.contains(PADDED_FORMAT).to_numpy()
    inner = rows["problem.intermediate"].to_numpy(dtype=float)
    if "config.tp" in rows:
        inner = inner / rows["config.tp"].to_numpy(dtype=float)
    for side in (rows["problem.hidden"].to_numpy(dtype=float), inner):
        factor = factor * np.ceil(side / PADDED_EDGE) * PADDED_EDGE / side
    return np.where(padded, factor, 1.0)


def _shape(kernel: str, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the tiles, the depth, and the launches of operators."""

    def size(name: str, default: float = 1.0) -> np.ndarray:
        if name not in rows:
            return np.full(len(rows), default)
        return rows[name].to_numpy(dtype=float)

    if kernel == "gemm":
        m, n, k = (size(f"problem.{axis}") for axis in "MNK")
        return np.ceil(m / TILE) * np.ceil(n / TILE), k, 1
    if kernel == "moe":
        hidden = size("problem.hidden")
        inner = size("problem.intermediate") / size("config.tp")
        load = max_rank_load(
            size("problem.tokens"),
            size("problem.top_k"),
            size("problem.experts"),
            size("config.ep"),
            rows["problem.distribution"].astype(str).to_numpy(),
        )
        rows_of_expert = np.ceil(load.pairs / load.active / TILE)
        tiles = load.active * rows_of_expert * np.ceil(2.0 * inner / TILE)
        return tiles, hidden + inner, PRODUCTS_OF_EXPERTS
    # Attention splits its work into as many parts as fill the device.
    return np.full(len(rows), np.inf), np.zeros(len(rows)), 1
