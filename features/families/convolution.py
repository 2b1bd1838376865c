"""Image convolutions: channels, strides, padding, dilation, groups, three directions."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from foretune.family import Cells, Cost, Family, Quantity
from foretune.features.families import formats
from foretune.features.families.tiles import map_texts, product_features
from foretune.features.geometry import alignment, cache_features

WINOGRAD = ((2, 3), (3, 2), (4, 3))
"""Output tile and filter sizes of common Winograd algorithms (Lavin and Gray, CVPR 2016)."""
SOLVERS = (
    "winograd",
    "igemm|implicitgemm",
    "xdlops",
    "nhwc",
    "gemmfwd|gemmbwd|gemmwrw",
    "direct",
    "asm",
    "mlir",
    "fft",
)
"""Substrings of MIOpen solver names that identify the algorithm."""
FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS = 0, 1, 2


class Convolution(Family):
    """Columns: problem.batch, in_channels, in_h, in_w, out_channels, out_h, out_w, kernel_h, ….

    Also stride, pad and dil with ``_h`` and ``_w``, groups, dtype, direction (forward, backward
    data, backward weights). Missing columns are 1, and ``fp32``. Single-channel benchmarks use
    size_0, size_1 (the output), filter_height and filter_width instead.
    """

    name = "convolution"

    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Return 2 operations per output and filter element; images and filters moved once."""
        sizes = _Sizes(problem)
        kind = config.get("format", problem.get("dtype", "fp32"))
        return Cost(
            flops=2.0 * sizes.batch * sizes.out_pixels * sizes.out_channels * sizes.inner,
            bytes_moved=formats.weight_bytes(kind)
            * (sizes.input + sizes.output + sizes.out_channels * sizes.inner),
            dtype=formats.compute_dtype(kind),
        )

    def derived(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return features of the equivalent matrix product, Winograd padding and the solver."""
        if "in_channels" not in problem:
            return {}
        sizes = _Sizes(problem)
        product = dict(zip("mnk", sizes.product(problem.get("direction", "forward")), strict=True))
        size = formats.weight_bytes(problem.get("dtype", "fp32"))
        unfolded = size * sizes.batch * sizes.groups * sizes.inner * sizes.out_pixels
        features: dict[str, Quantity] = {
            **{f"log2_{axis}": np.log2(edge) for axis, edge in product.items()},
            **{f"alignment_{axis}": alignment(edge) for axis, edge in product.items()},
            "alignment_pixels": alignment(sizes.out_pixels),
            "log2_input": np.log2(size * sizes.input),
            "log2_output": np.log2(size * sizes.output),
            "log2_weights": np.log2(size * sizes.out_channels * sizes.inner),
            "log2_unfolded": np.log2(unfolded),
            "unfolded_share": unfolded / (size * (sizes.input + sizes.output)),
            "taps": sizes.taps,
            "strides": sizes.strides,
            "depthwise": 1.0 * np.equal(sizes.groups, sizes.in_channels),
            **cache_features("weights", size * sizes.out_channels * sizes.inner, device),
            **product_features(product["m"], product["n"], sizes.groups, device),
        }
        for tile, taps in WINOGRAD:
            spans = [np.ceil(sizes.out[i] / tile) * tile / sizes.out[i] for i in (0, 1)]
            windows = [np.ceil(sizes.kernel[i] / taps) * taps / sizes.kernel[i] for i in (0, 1)]
            waste = spans[0] * spans[1] * windows[0] * windows[1]
            features[f"winograd_{tile}x{taps}"] = waste * ((tile + taps - 1.0) / tile / taps) ** 2
        if "solver" in config:
            features |= _solver(config["solver"])
        return features


class _Sizes:
    """Convolution sizes, independent of column names; ``inner`` are the products per output."""

    def __init__(self, problem: Cells) -> None:
        def of(name: str, other: Any = 1.0) -> Any:
            return 1.0 * problem.get(name, other)

        self.batch, self.groups = of("batch"), np.maximum(of("groups"), 1.0)
        self.in_channels, self.out_channels = of("in_channels"), of("out_channels")
        self.out: tuple[Any, Any] = of("out_h"), of("out_w")
        if "out_h" not in problem:
            self.out = 1.0 * problem["size_1"], 1.0 * problem["size_0"]
        self.kernel: tuple[Any, Any] = of("kernel_h"), of("kernel_w")
        if "kernel_h" not in problem:
            self.kernel = 1.0 * problem["filter_height"], 1.0 * problem["filter_width"]
        self.strides, self.taps = of("stride_h") * of("stride_w"), self.kernel[0] * self.kernel[1]
        self.out_pixels = self.out[0] * self.out[1]
        self.in_pixels = of("in_h", self.out[0]) * of("in_w", self.out[1])
        self.inner = self.in_channels / self.groups * self.taps
        self.input = self.batch * self.in_channels * self.in_pixels
        self.output = self.batch * self.out_channels * self.out_pixels

    def product(self, direction: Any) -> tuple[Any, Any, Any]:
        """Return M, N and K of the equivalent matrix product of one group."""
        rows, channels = self.out_channels / self.groups, self.in_channels / self.groups
        way = map_texts(direction, _direction_code)
        pick = [np.equal(way, BACKWARD_DATA), np.equal(way, BACKWARD_WEIGHTS)]
        out, image = self.batch * self.out_pixels, self.batch * self.in_pixels
        m = np.where(pick[0], channels, rows)
        n = np.where(pick[0], image, np.where(pick[1], self.inner, out))
        k = np.where(pick[0], rows * self.taps, np.where(pick[1], out, self.inner))
        return m, n, k


def _direction_code(name: str) -> float:
    name = name.lower()
    if name == "w" or "weight" in name or "wrw" in name:
        return BACKWARD_WEIGHTS
    return BACKWARD_DATA if name == "b" or "back" in name or "bwd" in name else FORWARD


def _solver(name: Any) -> dict[str, Quantity]:
    """Return one indicator per algorithm in MIOpen's solver names."""
    return {
        f"solver_{part.partition('|')[0]}": map_texts(name, partial(_has_any, part.split("|")))
        for part in SOLVERS
    }


def _has_any(parts: Sequence[str], name: str) -> float:
    return float(any(part in name.lower() for part in parts))
