"""Comparing what configurations compute: all of them should do the same."""

from collections.abc import Callable, Mapping
from typing import Any

import triton


class Checker:
    """Compares the outputs of configurations with those of the first one.

    All tensor arguments are compared, whichever are outputs. They are put back after every launch;
    that takes memory for two copies of each.

    Args:
        launch: runs a configuration once.
        arguments: of the call, by name.
        baseline: whose output is right.
    """

    def __init__(
        self,
        launch: Callable[[triton.Config], None],
        arguments: Mapping[str, Any],
        baseline: triton.Config,
    ) -> None:
        self._launch = launch
        tensors = {n: a for n, a in arguments.items() if hasattr(a, "clone")}
        self._inputs = {n: t.clone() for n, t in tensors.items()}
        self._tensors = tensors
        self._expected = self._run(baseline)

    def error(self, config: triton.Config) -> float:
        """Return the largest ``‖tensor − expected‖ / ‖expected‖`` after a launch."""
        found = self._run(config)
        return max((_relative(found[n], t) for n, t in self._expected.items()), default=0.0)

    def _run(self, config: triton.Config) -> dict[str, Any]:
        """Return all tensors after a launch, and put them back."""
        try:
            self._launch(config)
            return {n: t.clone() for n, t in self._tensors.items()}
        finally:
            for name, tensor in self._tensors.items():
                tensor.copy_(self._inputs[name])


def _relative(output: Any, expected: Any) -> float:
    difference = float((output.double() - expected.double()).norm())
    error = difference / max(float(expected.double().norm()), 1e-300)
    return error if error == error else float("inf")
