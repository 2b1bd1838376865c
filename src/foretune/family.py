"""Families: what is known about a kind of kernel without running it.

A family turns the sizes of a problem into work and into quantities that mean something on a device.
`foretune.kernel.Kernel` is a family that can also be run; families alone
(``foretune.features.families``) understand runs that other tools measured.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.code_hash import code_hash

Quantity = float | npt.NDArray[np.float64]


def nan_to(value: Any, replacement: Any) -> Any:
    """Return ``value`` where there is one, else ``replacement``: of one run, or of columns of
    many.
    """
    if isinstance(value, float):
        return replacement if value != value else value
    return np.where(np.isnan(value), replacement, value)


@dataclass(frozen=True)
class Cost:
    """The work of one launch: the numerators of the roofline.

    Attributes:
        flops: floating-point (or integer) operations; a fused multiply-add counts two.
        bytes_moved: compulsory traffic to main memory, in bytes.
        dtype: in which precision the operations run (``fp32``, ``fp64``, …): selects the peak
            rate; one for all, or an array of names.
    """

    flops: Quantity
    bytes_moved: Quantity
    dtype: str | npt.NDArray[np.str_] = "fp32"


class Family(ABC):
    """The analytic side of a kernel.

    Methods take columns by their short names: plain numbers for one run, arrays for many. Write
    them with arithmetic and NumPy functions only.

    Attributes:
        name: as in the run table's ``kernel`` column.
        accepts_scalars: whether a single row may come as NumPy's numbers, which is faster than
            arrays of one. Not for methods that index or mask their columns
            (`foretune.testing.check_kernel` tests it).
    """

    name: str
    accepts_scalars: bool = False
    has_cost_model: bool = True
    """Whether `cost` says anything; a predictor of one that does not has no roofline."""

    @cached_property  # it goes along with a kernel of a script, whose code is nowhere else
    def source_hash(self) -> str:
        """Identifies the code: sixteen hexadecimal digits; see `foretune.code_hash`."""
        return code_hash(type(self), Family)

    @abstractmethod
    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return the work of one launch, for one configuration or for columns of many."""

    def launch_parts_ms(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return what one launch takes by each limit alone, in milliseconds at peak rates.

        Empty where nothing is known of the launch: then operations over peak rate and bytes over
        bandwidth are its parts. ``device`` is as in `derived`.
        """
        return {}

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return extra features that mean something for this kind of kernel, by name.

        ``device`` holds the specs of `foretune.device.SPECS` that are known.
        """
        return {}
