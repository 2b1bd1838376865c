"""Calls of kernels under an autotuner, with the results that they should have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
from smoke_problems import GEMM

import foretune

SPOILED = 3.0
"""What is written to an output before a launch."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of a kernel, its output, and the expected result.

    Attributes:
        args: Positional arguments.
        named: Keyword arguments.
        grid: Grid of the launch.
        output: Tensor that the kernel writes.
        expected: Expected result; None if nothing runs.
        limit: Allowed relative error.
    """

    args: tuple[Any, ...]
    named: dict[str, Any]
    grid: Any
    output: torch.Tensor
    expected: torch.Tensor | None
    limit: float

    def launch(self, tuner: Any) -> None:
        """Call the decorated kernel."""
        tuner[self.grid](*self.args, **self.named)

    def spoil(self) -> None:
        """Overwrite the output, so that nothing old can pass."""
        self.output.fill_(SPOILED)

    def error(self) -> float:
        """Return the relative error; zero where nothing runs."""
        if self.expected is None:
            return 0.0
        torch.cuda.synchronize()
        return GEMM.relative_error(self.output, self.expected)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel to tune.

    Attributes:
        function: the plain ``@triton.jit`` function.
        configs: what autotuners choose from.
        key: names of the arguments that make a problem.
        make: makes a call.
        heuristics: constants that follow from the others, or None.
    """

    function: Any
    configs: list[triton.Config]
    key: list[str]
    make: Callable[[], Call]
    heuristics: Mapping[str, Callable[[dict[str, Any]], Any]] | None = None

    def decorated(self, autotune: Callable[..., Any], **options: Any) -> Any:
        """Return the kernel under an autotuner, as if it had never been called."""
        kernel = triton.jit(self.function.fn)
        if self.heuristics:
            kernel = triton.heuristics(self.heuristics)(kernel)
        return autotune(self.configs, self.key, **options)(kernel)

    def tuned(self, **options: Any) -> tuple[Call, Any, list[triton.Config]]:
        """Return a call, the decorated kernel, and a list that collects measured configurations."""
        call = self.make()
        tuner = self.decorated(foretune.autotune, **options)
        measured: list[triton.Config] = []
        bench = tuner._bench

        def recorded(*args: Any, config: triton.Config, **named: Any) -> Any:
            measured.append(config)
            return bench(*args, config=config, **named)

        tuner._bench = recorded
        return call, tuner, measured
