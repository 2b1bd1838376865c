"""Comparing what configurations compute: all of them should do the same."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import triton


class Checker:
    """Compares the outputs of configurations with those of the first one that runs.

    All tensor arguments are compared, whichever are outputs. They are put back after every launch;
    that takes memory for three copies of each.

    Args:
        launch: runs a configuration once.
        arguments: of the call, by name.
        configs: the first of them that runs gives what is right.

    Raises:
        Exception: what the last of them raises, if none runs.
    """

    def __init__(
        self,
        launch: Callable[[triton.Config], None],
        arguments: Mapping[str, Any],
        configs: Sequence[triton.Config],
    ) -> None:
        self._launch = launch
        self._tensors = {n: a for n, a in arguments.items() if hasattr(a, "clone")}
        self._inputs = {n: t.clone() for n, t in self._tensors.items()}
        self._expected = self._first(configs)

    def error(self, config: triton.Config) -> float:
        """Return the largest ``‖tensor − expected‖ / ‖expected‖`` after a launch."""
        found = self._run(config)
        return max((_relative(found[n], t) for n, t in self._expected.items()), default=0.0)

    def _first(self, configs: Sequence[triton.Config]) -> dict[str, Any]:
        *others, last = configs
        for config in others:
            try:
                return self._run(config)
            except Exception:  # its own measurement will say so
                continue
        return self._run(last)

    def _run(self, config: triton.Config) -> dict[str, Any]:
        """Return all tensors after a launch, and put them back."""
        try:
            self._launch(config)
            return {n: t.clone() for n, t in self._tensors.items()}
        finally:
            for name, tensor in self._tensors.items():
                tensor.copy_(self._inputs[name])


def _relative(output: Any, expected: Any) -> float:
    """Return the relative error; memory that holds no numbers on both sides is not compared."""
    output, expected = output.double(), expected.double()
    numbers = expected.isfinite()
    if not (output.isfinite() == numbers).all():
        return float("inf")
    difference = float((output[numbers] - expected[numbers]).norm())
    return difference / max(float(expected[numbers].norm()), 1e-300)
