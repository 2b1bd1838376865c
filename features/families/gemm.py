"""Matrix products C[M, N] = A[M, K] · B[K, N], optionally quantized or batched."""

from typing import Any

import numpy as np

from foretune.device import roofline_terms_ms
from foretune.family import Cells, Cost, Family, Quantity
from foretune.features.families import formats
from foretune.features.families.tiles import product_features, tile_features, tile_of, wave_rounding
from foretune.features.geometry import cache_features


class Gemm(Family):
    """Columns: problem.M, N, K (batch); config.format or problem.dtype."""

    name = "gemm"

    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Return 2·M·N·K operations; A, B in their format and C in at least 16 bits, moved once."""
        problem = self._product(problem)
        m, n, k, batch = _sizes(problem)
        kind = _format(problem, config)
        a, b = formats.activation_bytes(kind), formats.weight_bytes(kind)
        return Cost(
            flops=2.0 * batch * m * n * k,
            bytes_moved=batch * (a * m * k + b * k * n + np.maximum(a, 2.0) * m * n),
            dtype=formats.compute_dtype(kind),
        )

    def derived(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return matrix sizes, and waves and padding per tile shape."""
        problem = self._product(problem)
        m, n, k, batch = _sizes(problem)
        weights = formats.weight_bytes(_format(problem, config)) * batch * n * k
        return {
            "log2_a": np.log2(1.0 * m * k),
            "log2_b": np.log2(1.0 * n * k),
            "log2_c": np.log2(1.0 * m * n),
            **cache_features("weights", weights, device),
            **product_features(m, n, batch, device),
            **tile_features(tile_of(config), m, n, k, batch, device),
        }

    def launch_parts_ms(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return operations in whole waves of whole tiles, and memory time, for a known tile."""
        if not (tile := tile_of(config)):
            return {}
        compute, memory = roofline_terms_ms(self.cost(problem, config), device)
        m, n, _, batch = _sizes(self._product(problem))
        return {"operations": compute * wave_rounding(tile, m, n, batch, device), "memory": memory}

    def _product(self, problem: Cells) -> Cells:
        """Return the sizes of one product; ``batch`` is their number."""
        return problem


class BatchedGemm(Gemm):
    """Columns: as `Gemm`; ``batch`` products of equal size."""

    name = "batched_gemm"


class GroupedGemm(Gemm):
    """Columns: problem.M (rows of all groups together), N, K, groups; format or dtype.

    The groups share the rows evenly; features are those of one group, waves those of all.
    """

    name = "grouped_gemm"

    def _product(self, problem: Cells) -> Cells:
        groups = np.maximum(np.minimum(problem["groups"], problem["M"]), 1.0)
        sizes = {name: problem[name] for name in ("N", "K")}
        kind = {"dtype": problem["dtype"]} if "dtype" in problem else {}
        return {**sizes, **kind, "M": problem["M"] / groups, "batch": groups}


def _sizes(problem: Cells) -> tuple[Any, Any, Any, Any]:
    return problem["M"], problem["N"], problem["K"], problem.get("batch", 1.0)


def _format(problem: Cells, config: Cells) -> Any:
    return config.get("format", problem.get("dtype", "fp16"))
