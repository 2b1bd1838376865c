"""Kernels that only move bytes: norms, softmax, elementwise, quantize; collectives, send/receive.

The bytes that a rank sends follow the ring algorithms (Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from foretune.family import Cost, Family, Quantity
from foretune.features.families import formats
from foretune.features.families.tiles import wave_features

FLOPS_PER_ELEMENT = {"norm": 8.0, "softmax": 8.0, "elementwise": 2.0, "quantize": 4.0}
"""Rough estimates: these kernels are memory-bound, and the models learn the rest."""


class Rowwise(Family):
    """Columns: problem.rows, problem.columns; config.format."""

    accepts_scalars = True

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return every element read once and written once."""
        elements = 1.0 * _rows(problem) * _columns(problem)
        size = formats.activation_bytes(config.get("format", "fp16"))
        return Cost(
            flops=FLOPS_PER_ELEMENT[self.name] * elements,
            bytes_moved=2.0 * size * elements,
            dtype="fp32",
        )

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
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


def _rows(problem: Mapping[str, Any]) -> Any:
    return problem["rows"] if "rows" in problem else problem["M"]


def _columns(problem: Mapping[str, Any]) -> Any:
    return problem["columns"] if "columns" in problem else problem["K"]


class Collective(Family):
    """Columns: problem.message_bytes, problem.devices."""

    accepts_scalars = True
    rounds = 1.0
    """Number of times that each rank sends its share to every other."""

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return the bytes a rank sends; memory bandwidth stands in for link bandwidth."""
        return Cost(flops=0.0, bytes_moved=np.maximum(self._sent(problem), 1.0), dtype="fp32")

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return the bytes per rank and per step."""
        return {
            "log2_sent": np.log2(np.maximum(self._sent(problem), 1.0)),
            "log2_share": np.log2(problem["message_bytes"] / (1.0 * problem["devices"])),
        }

    def _sent(self, problem: Mapping[str, Any]) -> Quantity:
        ranks = 1.0 * problem["devices"]
        return self.rounds * problem["message_bytes"] * (ranks - 1.0) / ranks


class AllReduce(Collective):
    """A reduce-scatter and an all-gather."""

    name = "all_reduce"
    rounds = 2.0


class AllGather(Collective):
    """Every rank ends with the parts of all."""

    name = "all_gather"


class AllToAll(Collective):
    """Every rank sends every other a different part."""

    name = "all_to_all"


class ReduceScatter(Collective):
    """Every rank ends with its part of the sum."""

    name = "reduce_scatter"


class SendReceive(Collective):
    """One rank sends another the whole message."""

    name = "send_recv"

    def _sent(self, problem: Mapping[str, Any]) -> Quantity:
        return 1.0 * problem["message_bytes"]
