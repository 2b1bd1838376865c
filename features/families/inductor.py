"""Kernels from PyTorch Inductor's Triton templates: matrix products and attention."""

from typing import Any

import numpy as np

from foretune.family import Cells, Cost, Family, Quantity
from foretune.features.families import formats
from foretune.features.families.tiles import TiledLaunch, padding
from foretune.features.geometry import cache_features


class InductorTemplate(Family):
    """A tiled launch, whose parts determine its time."""

    def launch(self, problem: Cells, config: Cells) -> TiledLaunch:
        """Return the geometry of a launch."""
        raise NotImplementedError

    def launch_parts_ms(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return `TiledLaunch.parts_ms`."""
        return self.launch(problem, config).parts_ms(device)


class InductorMm(InductorTemplate):
    """Columns: problem.M, N, K, mat1_dtype, mat2_dtype; config.BLOCK_M, BLOCK_N, BLOCK_K, …."""

    name = "inductor_mm"

    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Return 2·M·N·K operations; each matrix moved once, C in the format of A."""
        m, n, k = (1.0 * problem[p] for p in "MNK")
        a, b = _bytes(problem)
        return Cost(2.0 * m * n * k, a * m * k + b * k * n + a * m * n, _precision(problem))

    def launch(self, problem: Cells, config: Cells) -> TiledLaunch:
        """Return the geometry: a block per tile of C, a step per ``BLOCK_K``."""
        m, n, k = (1.0 * problem[p] for p in "MNK")
        tile_m, tile_n, tile_k = (1.0 * config[f"BLOCK_{p}"] for p in "MNK")
        a, b = _bytes(problem)
        return TiledLaunch(
            blocks=np.ceil(m / tile_m) * np.ceil(n / tile_n),
            steps=np.ceil(k / tile_k),
            flops=2.0 * tile_m * tile_n * tile_k,
            step_bytes=tile_k * (a * tile_m + b * tile_n),
            sums=tile_m * tile_n,
            warps=1.0 * config["num_warps"],
            stages=1.0 * config["num_stages"],
            moved_bytes=a * m * k + b * k * n + a * m * n,
            dtype=_precision(problem),
        )

    def derived(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return features of the tile, the launch and the memory layout."""
        m, n, k = (1.0 * problem[p] for p in "MNK")
        tile_m, tile_n, tile_k = (1.0 * config[f"BLOCK_{p}"] for p in "MNK")
        a, b = _bytes(problem)
        one, other = (problem.get(f"mat{i}_stride_0", np.float64(0.0)) for i in (1, 2))
        return {
            "area": tile_m * tile_n,
            "aspect": np.log2(tile_m / tile_n),
            "padding_m": padding(m, tile_m),
            "padding_n": padding(n, tile_n),
            "padding_k": padding(k, tile_k),
            "transposed_a": 1.0 * np.equal(one, 1),
            "transposed_b": 1.0 * np.equal(other, 1),
            **cache_features("factors", a * m * k + b * k * n, device),
            **self.launch(problem, config).features(device),
        }


class InductorMixedMm(InductorMm):
    """`InductorMm` with 8-bit B, unpacked in the kernel."""

    name = "inductor_mixed_mm"


class InductorFlexAttention(InductorTemplate):
    """Columns: problem.batch, heads, seq_q, seq_kv, head_dim, dtype; config.BLOCK_M, BLOCK_N, ….

    The mask is unknown and hidden blocks of keys are skipped, so the cost is a lower bound: one
    block of keys per query. The model learns the rest.
    """

    name = "inductor_flex_attention"

    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Return 4·head_dim operations per query and key of a block; queries and output once."""
        heads, queries, keys, dim = _attention(problem)
        return Cost(
            flops=4.0 * heads * queries * np.minimum(keys, config["BLOCK_N"]) * dim,
            bytes_moved=2.0 * formats.weight_bytes(problem["dtype"]) * heads * dim * queries,
            dtype=formats.compute_dtype(problem["dtype"]),
        )

    def launch(self, problem: Cells, config: Cells) -> TiledLaunch:
        """Return the geometry: a block per head and ``BLOCK_M`` queries, one step."""
        heads, queries, _, dim = _attention(problem)
        tile_m, tile_n = (1.0 * config[f"BLOCK_{p}"] for p in "MN")
        cost, size = self.cost(problem, config), formats.weight_bytes(problem["dtype"])
        return TiledLaunch(
            blocks=heads * np.ceil(queries / tile_m),
            steps=1.0,
            flops=4.0 * tile_m * tile_n * dim,
            step_bytes=2.0 * size * dim * (tile_m + tile_n),
            sums=tile_m * (tile_n + dim),
            warps=1.0 * config["num_warps"],
            stages=1.0 * config["num_stages"],
            moved_bytes=cost.bytes_moved,
            dtype=cost.dtype,
        )

    def derived(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return features of the tile and the launch."""
        _, queries, keys, dim = _attention(problem)
        tile_m, tile_n = (1.0 * config[f"BLOCK_{p}"] for p in "MN")
        return {
            "area": tile_m * tile_n,
            "aspect": np.log2(tile_m / tile_n),
            "width": dim,
            "log2_keys": np.log2(keys),
            "padding_m": padding(queries, tile_m),
            "padding_n": padding(keys, tile_n),
            **self.launch(problem, config).features(device),
        }


def _bytes(problem: Cells) -> tuple[Quantity, Quantity]:
    return formats.weight_bytes(problem["mat1_dtype"]), formats.weight_bytes(problem["mat2_dtype"])


def _precision(problem: Cells) -> Any:
    """Return the precision of operations: that of A, or TF32 if the problem requests it."""
    plain = formats.compute_dtype(problem["mat1_dtype"])
    flags = np.asarray(problem.get("using_tf32", ""), dtype=str)  # True is written 1 here
    fast = (flags == "1") | (flags == "1.0") | (flags == "True")
    chosen = np.where(fast & np.equal(plain, "fp32"), "tf32", plain)
    return chosen if chosen.ndim else str(chosen)


def _attention(problem: Cells) -> tuple[Quantity, Quantity, Quantity, Quantity]:
    heads = 1.0 * problem["batch"] * problem["heads"]
    return heads, 1.0 * problem["seq_q"], 1.0 * problem["seq_kv"], 1.0 * problem["head_dim"]
