"""Convolutions of images by a filter, as tuning benchmarks run them: one channel, fixed filter."""

from collections.abc import Mapping
from typing import Any

from foretune.family import Cost, Family


class Convolution(Family):
    """Columns: problem.size_0, size_1 (the output), problem.filter_height, filter_width."""

    name = "convolution"
    takes_numbers = True

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 2 operations per output and filter element; image in and out moved once."""
        pixels = 1.0 * problem["size_0"] * problem["size_1"]
        taps = 1.0 * problem["filter_height"] * problem["filter_width"]
        return Cost(flops=2.0 * pixels * taps, bytes_moved=8.0 * pixels, dtype="fp32")
