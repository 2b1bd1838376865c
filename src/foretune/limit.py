"""Hard limits: what a measurement may cost at most to count at all."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from foretune.errors import UnknownName, UsageError
from foretune.measurement import Measurement
from foretune.objective import Objective

if TYPE_CHECKING:
    import numpy.typing as npt

FIGURES = ("time_ms", "power_w", "energy_mj", "compile_s", "relative_error")
"""What can be limited; and every ``static.<name>`` that a kernel's runs report."""
METERED = ("power_w", "energy_mj")


@dataclass(frozen=True)
class Limit:
    """The most that one column of the run table may be.

    Attributes:
        column: one of `FIGURES`, or ``static.<name>``.
        most: in the column's unit.
    """

    column: str
    most: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the limit meant by ``text``, e.g. ``power_w=300``.

        Raises:
            UsageError: it cannot be read, or no limit of that name exists.
        """
        column, equals, number = (part.strip() for part in text.partition("="))
        if not equals:
            raise UsageError(f"limit {text!r} has no '=': give COLUMN=MOST, like power_w=300")
        if column not in FIGURES and not column.startswith("static."):
            raise UnknownName("limit", column, [*FIGURES, "static.…"])
        try:
            most = float(number)
        except ValueError:
            most = math.nan
        if not 0 < most < math.inf:
            raise UsageError(f"limit {text!r}: {number!r} is not a number above 0")
        return cls(column, most)

    def __str__(self) -> str:
        return f"{self.column} ≤ {self.most:g}"

    @property
    def needs_power(self) -> bool:
        """Whether it can only be checked with a power meter."""
        return self.column in METERED

    def of(self, measurement: Measurement) -> float:
        """Return the limited figure of a measurement; NaN where nobody took it."""
        if self.column in FIGURES:
            return float(getattr(measurement, self.column))
        return float(measurement.static.get(self.column.removeprefix("static."), math.nan))

    def holds(self, measurement: Measurement) -> bool:
        """Whether a measurement keeps to it; one that does not say so does not."""
        return self.of(measurement) <= self.most

    def probability(self, predicted: Mapping[str, Any]) -> "npt.NDArray[np.float64]":
        """Return how likely it is to hold, from `Predictor.predict`'s columns: 1 if it cannot say.

        The logarithm of a prediction errs normally, and its 90 % interval is 1.645 standard
        deviations to each side. Energy is the product of time and power, which err independently.
        """
        from scipy.special import ndtr

        factors = ("time_ms", "power_w") if self.column == "energy_mj" else (self.column,)
        value, variance = np.ones(len(predicted["p_valid"])), 0.0
        for factor in factors:
            if factor not in predicted:
                return np.ones_like(value)
            here = np.asarray(predicted[factor])
            value = value * here
            variance = variance + (np.log(predicted[f"{factor}_high"] / here) / 1.645) ** 2
        distance = np.log(self.most / value) / np.sqrt(np.maximum(variance, 1e-12))
        return np.asarray(ndtr(distance))


@dataclass(frozen=True)
class Limited:
    """An objective that counts only within hard limits: to a searcher, what breaks one failed.

    Attributes:
        objective: what is minimised.
        limits: all of them must hold.
    """

    objective: Objective
    limits: tuple[Limit, ...]

    def measured(self, measurement: Measurement) -> float:
        """Return the objective of a measurement: infinite if it failed or breaks a limit."""
        within = all(limit.holds(measurement) for limit in self.limits)
        return self.objective.measured(measurement) if within else math.inf

    def is_known(self, measurement: Measurement) -> bool:
        """Whether a measurement says all that objective and limits ask; a failure says enough."""
        figures = [limit.of(measurement) for limit in self.limits]
        figures.append(self.objective.measured(measurement))
        return not (measurement.ok and any(map(math.isnan, figures)))


def figures_of(measurement: Measurement) -> list[str]:
    """Return the columns of a measurement that can be limited."""
    taken = [name for name in FIGURES if not math.isnan(getattr(measurement, name))]
    return [*taken, *(f"static.{name}" for name in measurement.static)]


def broken_limits(limits: Sequence[Limit], runs: Sequence[Measurement]) -> str:
    """Return which limits the medians of some runs of one configuration break; empty if none.

    A run that failed breaks them all: nobody knows what it would have cost.
    """
    if not limits:
        return ""
    if not all(m.ok for m in runs):
        return "it no longer runs"
    medians = {limit: float(np.median([limit.of(m) for m in runs])) for limit in limits}
    return ", ".join(
        f"{limit.column} {figure:.4g} > {limit.most:g}"
        for limit, figure in medians.items()
        if not figure <= limit.most
    )
