"""Kernels of serving engines whose tunings were published, and how they name their sizes."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from foretune.errors import PredictorError
from foretune.space import Configuration
from foretune.support.files import translate_read_errors
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.published import shipped_tunings

KERNELS_FILE = Path(__file__).parent / "shipped" / "kernels.csv"
"""A row per `PublishedKernel`."""
AXIS_SEPARATOR = ":"
"""Between a tensor's name and the number of its axis, in the place of a size."""
EXPERTS_FAMILY = "fused_moe"
"""The family whose tunings count the width of an expert, not the columns of a product."""


@dataclass(frozen=True)
class PublishedKernel:
    """Where a kernel's call has what its published tunings depend on.

    A size is the name of an integer argument, or ``tensor:axis``.

    Attributes:
        function: the kernel's name.
        family: the kernels that share published tunings.
        m: the rows.
        n: the columns.
        weights: the tensor whose type decides.
        experts: the number of experts; empty if there are none.
    """

    function: str
    family: str
    m: str
    n: str
    weights: str
    experts: str


@cache
def published_kernels() -> Mapping[str, PublishedKernel]:
    """Return the kernels by name; raises PredictorError if the file is damaged."""
    damaged = "is damaged ({}): install Foretune again"
    with (
        translate_read_errors(KERNELS_FILE, PredictorError, damaged),
        KERNELS_FILE.open(encoding="utf-8", newline="") as file,
    ):
        return {row["function"]: PublishedKernel(**row) for row in csv.DictReader(file)}


def popular_log_shares(call: Call, configs: Sequence[Configuration]) -> np.ndarray | None:
    """Return the log of each candidate's share of published tunings; None for other kernels."""
    kernel = published_kernels().get(call.kernel)
    if kernel is None:
        return None
    weights: Any = call.arguments.get(kernel.weights)
    m = _size(call.arguments, kernel.m)
    n = _size(call.arguments, kernel.n)
    experts = _size(call.arguments, kernel.experts) if kernel.experts else 1
    if not (m and n and experts) or not hasattr(weights, "dtype"):
        return None

    # Both products of an expert have its width as an axis: the first has two matrices of it (gate
    # and up) as columns, the second (down) has it as depth.
    if kernel.family == EXPERTS_FAMILY:
        n = min(n // 2, weights.shape[2])
    tunings = shipped_tunings()[kernel.family]
    return tunings.log_shares(call.device, _dtype(weights), (m, n, experts), configs)


def _size(arguments: Mapping[str, Any], place: str) -> int:
    """Return a size; 0 if the call does not have it."""
    name, _, axis = place.partition(AXIS_SEPARATOR)
    value: Any = arguments.get(name)
    if axis:
        shape = getattr(value, "shape", ())
        value = shape[int(axis)] if len(shape) > int(axis) else 0
    return value if type(value) is int else 0


def _dtype(tensor: Any) -> str:
    """Return the type of weights by its name in tunings; 16 for all 16-bit types."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith("float8"):
        return "fp8"
    return name if name in ("int8", "uint8") else "16"
