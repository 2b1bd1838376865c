"""Kernels that stream rows: norms, softmax, elementwise operations, quantization."""

from typing import Any

import numpy as np

from foretune.family import Cells, Cost, Family, Quantity
from foretune.features.families import formats
from foretune.features.families.tiles import wave_features

FLOPS_PER_ELEMENT = {"norm": 8.0, "softmax": 8.0, "elementwise": 2.0, "quantize": 4.0}
"""Rough estimates: these kernels are memory-bound, and the models learn the rest."""


class Rowwise(Family):
    """Columns: problem.rows, problem.columns; config.format."""

    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Return the work of reading and writing every element once."""
        elements = 1.0 * _rows(problem) * _columns(problem)
        size = formats.activation_bytes(config.get("format", "fp16"))
        return Cost(
            flops=FLOPS_PER_ELEMENT[self.name] * elements,
            bytes_moved=2.0 * size * elements,
            dtype="fp32",
        )

    def derived(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return the element count and the waves of rows."""
        rows = 1.0 * _rows(problem)
        elements = rows * _columns(problem)
        return {
            "log2_elements": np.log2(elements),
            **wave_features("rows", rows, device),
            **wave_features("kilo", np.ceil(elements / 1024), device),
        }


class Norm(Rowwise):
    """Layer and root-mean-square norms."""

    name = "norm"


class Softmax(Rowwise):
    """Softmax over the columns."""

    name = "softmax"


class Elementwise(Rowwise):
    """One operation per element, named by ``problem.op``."""

    name = "elementwise"


class Quantize(Rowwise):
    """Scales and rounds a matrix of problem.M rows and problem.K columns."""

    name = "quantize"


def _rows(problem: Cells) -> Any:
    return problem["rows"] if "rows" in problem else problem["M"]


def _columns(problem: Cells) -> Any:
    return problem["columns"] if "columns" in problem else problem["K"]
