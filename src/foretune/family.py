"""Families: analytic models of kinds of kernels.

A family computes the work of a launch, and features, from the sizes of a problem.
`foretune.kernel.Kernel` is a family that can also be run; the families in
``foretune.features.families`` describe kernels that other tools measured.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.support.code_hash import code_hash

Quantity = float | npt.NDArray[np.float64]
"""A number for one run, or an array with one for each of many."""
Cells = Mapping[str, Any]
"""Values by short name: numbers for one run, arrays for many."""


def nan_to(value: Any, replacement: Any) -> Any:
    """Replace NaN in a number or an array."""
    if isinstance(value, float):
        return replacement if math.isnan(value) else value
    return np.where(np.isnan(value), replacement, value)


@dataclass(frozen=True)
class Cost:
    """The work of one launch: the numerators of the roofline.

    Attributes:
        flops: floating-point (or integer) operations; a fused multiply-add counts two.
        bytes_moved: compulsory traffic to main memory, in bytes.
        dtype: precision of the operations (``fp32``, ``fp64``, …), which selects the peak rate: one
            for all, or an array of names.
    """

    flops: Quantity
    bytes_moved: Quantity
    dtype: str | npt.NDArray[np.str_] = "fp32"


class Family(ABC):
    """The analytic side of a kernel.

    Methods take columns by their short names: numbers for one run, arrays for many. Write them
    with arithmetic and NumPy functions only.
    """

    name: str
    """Value of the run table's column ``kernel``."""
    has_cost_model: bool = True
    """Whether `cost` is meaningful; without it, predictors have no roofline."""

    @cached_property
    def source_hash(self) -> str:
        """Hash of the code, 16 hexadecimal digits; see `foretune.support.code_hash`.

        It is pickled with a kernel from a script, whose code another process cannot read.
        """
        return code_hash(type(self), Family)

    @abstractmethod
    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Return the work of one launch, for one configuration or for columns of many."""

    def launch_parts_ms(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return the time of one launch by each limit alone, in milliseconds at peak rates.

        If it is empty, the parts are operations over peak rate and bytes over bandwidth.
        ``device`` is as in `derived`.
        """
        return {}

    def derived(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return additional features of this kind of kernel, by name.

        ``device`` holds the known specs of `foretune.device.SPECS`.
        """
        return {}
