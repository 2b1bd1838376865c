"""Matrix products C[M, N] = A[M, K] · B[K, N], optionally quantized or batched."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from foretune.family import Cost, Family, Quantity
from foretune.features.families import formats
from foretune.features.families.tiles import product_features
from foretune.features.geometry import cache_features


class Gemm(Family):
    """Columns: problem.M, N, K (batch); config.format or problem.dtype."""

    name = "gemm"
    accepts_scalars = True

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 2·M·N·K operations; A, B in their format and C in at least 16 bits, moved once."""
        m, n, k = problem["M"], problem["N"], problem["K"]
        batch = problem.get("batch", 1.0)
        kind = _format(problem, config)
        a, b = formats.activation_bytes(kind), formats.weight_bytes(kind)
        return Cost(
            flops=2.0 * batch * m * n * k,
            bytes_moved=batch * (a * m * k + b * k * n + np.maximum(a, 2.0) * m * n),
            dtype=formats.compute_dtype(kind),
        )

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return matrix sizes, and waves and padding per tile shape."""
        m, n, k = problem["M"], problem["N"], problem["K"]
        batch = problem.get("batch", 1.0)
        weights = formats.weight_bytes(_format(problem, config)) * batch * n * k
        return {
            "log2_a": np.log2(1.0 * m * k),
            "log2_b": np.log2(1.0 * n * k),
            "log2_c": np.log2(1.0 * m * n),
            **cache_features("weights", weights, device),
            **product_features(m, n, batch, device),
        }


class BatchedGemm(Gemm):
    """Columns: as `Gemm`; ``batch`` products of equal size."""

    name = "batched_gemm"


class GroupedGemm(Gemm):
    """Columns: problem.M (rows of all groups together), N, K, groups; format or dtype."""

    name = "grouped_gemm"

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return the work of ``groups`` products that share the rows evenly."""
        return super().cost(_single_group(problem), config)

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return `Gemm`'s features of one group, and the wave count of all groups."""
        return super().derived(_single_group(problem), config, device)


def _single_group(problem: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sizes of one group's product; ``batch`` is the number of groups with rows."""
    groups = np.maximum(np.minimum(problem["groups"], problem["M"]), 1.0)
    sizes = {name: problem[name] for name in ("N", "K")}
    kind = {"dtype": problem["dtype"]} if "dtype" in problem else {}
    return {**sizes, **kind, "M": problem["M"] / groups, "batch": groups}


def _format(problem: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    return config.get("format", problem.get("dtype", "fp16"))
