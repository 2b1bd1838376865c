"""Minimizes an objective of any sign, with searchers of positive objectives.

Searchers model the logarithm of the objective. As long as all measured values are positive, the
searcher is told the values themselves. After the first value of zero or below, a new searcher is
told all values so far, mapped to positive ones in the same order: far above the median, the mapped
value grows with the distance to the median; as far below, it is the inverse. Whenever the number of
values has doubled, the mapping is fitted again, and a new searcher starts.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from foretune.errors import UsageError
from foretune.measurement import Measurement
from foretune.objective import Scalarization
from foretune.search.searcher import AskTell, Searcher
from foretune.space import Configuration


@dataclass(frozen=True)
class PositiveScale:
    """A mapping of all numbers to positive ones that keeps their order.

    Attributes:
        center: the number that is mapped to 1.
        width: the distance from the center at which the logarithm of the mapped number is 0.9.
    """

    center: float
    width: float

    @classmethod
    def fit(cls, values: Sequence[float]) -> Self:
        """Return the mapping of the median to 1, and of the smallest number to about 0.4."""
        center = float(np.median(values))
        width = center - min(values)
        return cls(center=center, width=width if width > 0 else max(abs(center), 1.0))

    def positive(self, value: float) -> float:
        """Return the positive number of ``value``; infinity and NaN stay as they are."""
        if not math.isfinite(value):
            return value
        return math.exp(math.asinh((value - self.center) / self.width))


class AnySignSearcher(AskTell[Configuration]):
    """Lets a searcher minimize an objective of any sign.

    ``make`` returns a new searcher like the first. Without it, `tell` raises UsageError for a value
    that is not positive.

    Attributes:
        searcher: the present searcher.
        space: its search space.
        values: index of a configuration in the space -> its measured objective, infinite for a
            failure.
    """

    def __init__(
        self,
        searcher: Searcher,
        objective: Scalarization,
        make: Callable[[], Searcher] | None = None,
    ) -> None:
        self._make = make
        self._objective = objective
        self.searcher = searcher
        self._scale: PositiveScale | None = None
        self._fitted_count = 0
        self.space = self.searcher.space
        self.values: dict[int, float] = {}

    def ask(self, n: int = 1) -> list[Configuration]:
        """Return up to ``n`` new configurations."""
        return self.searcher.ask(n)

    def tell(self, measurements: Iterable[Measurement]) -> None:
        """Learn from measurements."""
        new = {self.space.index(m.config): self._objective.value_of(m) for m in measurements}
        self.values.update(new)
        finite = [value for value in self.values.values() if math.isfinite(value)]

        # Without a scale yet: positive values need none, the first other one starts it.
        is_positive = all(value > 0 for value in finite)
        if self._scale is None and is_positive:
            self.searcher.tell_values(new)
            return

        # With a scale: fit it again whenever the number of values has doubled.
        has_doubled = len(finite) >= 2 * self._fitted_count
        if self._scale is None or has_doubled:
            self._start_again(finite)
        else:
            self._tell_positive(new, self._scale)

    def expected_regret(self) -> float:
        """Return the searcher's estimate."""
        return self.searcher.expected_regret()

    def expected_improvement(self) -> float:
        """Return the searcher's estimate."""
        return self.searcher.expected_improvement()

    def best(self) -> Configuration | None:
        """Return the configuration with the smallest value; None before the first success."""
        finite = {i: value for i, value in self.values.items() if math.isfinite(value)}
        return self.space[min(finite, key=lambda i: finite[i])] if finite else None

    def _start_again(self, finite: Sequence[float]) -> None:
        """Replace the searcher by a new one that is told all values on a new scale."""
        if self._make is None:
            raise UsageError(
                "a number is not above 0: give the searcher's name or class instead of a searcher"
            )
        proposed = self.searcher.proposed
        self._scale = PositiveScale.fit(finite)
        self._fitted_count = len(finite)
        self.searcher = self._make()
        self.searcher.proposed |= proposed
        self._tell_positive(self.values, self._scale)

    def _tell_positive(self, values: dict[int, float], scale: PositiveScale) -> None:
        self.searcher.tell_values({i: scale.positive(value) for i, value in values.items()})
