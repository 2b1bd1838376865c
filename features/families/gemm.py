"""Matrix products: C[M, N] = A[M, K] · B[K, N], weights B quantized or not, ``batch`` of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from foretune.family import Cost, Family, Quantity
from foretune.features.families import formats
from foretune.features.families.caches import of_cache
from foretune.features.families.tiles import padding, wave_features

TILES = ((64, 64), (64, 256), (128, 128), (128, 256), (256, 128), (16, 64))
"""Output tiles libraries choose among: which one ran is not known, so all are described."""


class Gemm(Family):
    """Columns: problem.M, N, K (batch); config.format or problem.dtype."""

    name = "gemm"
    takes_numbers = True

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 2·M·N·K operations; A, B in their format and C in 16 bits (or 32) moved once."""
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
        """Return sizes of the matrices, and per tile shape the waves and the padding."""
        m, n, k = problem["M"], problem["N"], problem["K"]
        batch = problem.get("batch", 1.0)
        weights = formats.weight_bytes(_format(problem, config)) * batch * n * k
        features = {
            "log2_a": np.log2(1.0 * m * k),
            "log2_b": np.log2(1.0 * n * k),
            "log2_c": np.log2(1.0 * m * n),
            **of_cache("weights", weights, device),
        }
        for tile_m, tile_n in TILES:
            tiles = batch * np.ceil(m / tile_m) * np.ceil(n / tile_n)
            name = f"{tile_m}x{tile_n}"
            features |= wave_features(name, tiles, device)
            features[f"padding_{name}"] = padding(m, tile_m) * padding(n, tile_n)
        return features


def _format(problem: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    return config.get("format", problem.get("dtype", "fp16"))
