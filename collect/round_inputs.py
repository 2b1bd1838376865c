"""Inputs of a comparison's timed calls: new values at the addresses that launches read."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from foretune.collect.wrapped.values import copy_arrays, have_same_layout
from foretune.kernel import Inputs


class RoundInputs:
    """Inputs whose values are replaced in place, at the addresses that launches read.

    ``present`` are the arrays that launches read, ``new`` the values of the next timed call,
    ``old`` those of the one before. ``draw`` returns the inputs of a seed. Inputs in ``constant``,
    and those whose shapes depend on the seed, keep their first values.
    """

    def __init__(
        self, draw: Callable[[int], Inputs], constant: Sequence[str], rng: np.random.Generator
    ) -> None:
        self._draw_seed = draw
        self._rng = rng
        self.draw_ms = 0.0
        """What the last draw took."""
        self.present: Inputs = self._draw()  # where the kernel puts them, which may be aligned
        self._constant = {name: self.present[name] for name in constant if name in self.present}
        self.old = self.new = copy_arrays(self.present) | self._constant

    def next(self) -> Inputs:
        """Draw and return the values of the next timed call."""
        self.advance()
        return self.new

    def advance(self) -> None:
        """Draw the values of the next timed call."""
        start = time.perf_counter()
        drawn = self._draw() | self._constant
        self.draw_ms = 1e3 * (time.perf_counter() - start)
        if have_same_layout(self.present, drawn):
            self.old = self.new
            self.new = drawn

    def _draw(self) -> Inputs:
        return self._draw_seed(int(self._rng.integers(1, 2**31)))
