"""Kernels: tunable programs, seen through one small interface."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from foretune.family import Family
from foretune.problem import Problem, ProblemParameter, make_problem
from foretune.space import Configuration, SearchSpace

Inputs = dict[str, Any]
"""What `Kernel.make_inputs` returns: named arrays."""

Launch = Callable[[], Any]
"""Runs the kernel once and returns its output; everything that is not timed happened before."""


class Clock(Protocol):
    """Times launches."""

    def sample_ms(self, launch: Launch, batch: int) -> float:
        """Return the mean time of ``batch`` launches back to back, in milliseconds."""


class SelfTimedLaunch(ABC):
    """A launch that says itself how long it took: a program, a queue's events, spoilt inputs."""

    @abstractmethod
    def __call__(self) -> Any:
        """Launch once on inputs as they were at first, and return the output; this is not timed."""

    @abstractmethod
    def sample_ms(self, clock: Clock, batch: int) -> float:
        """Return the mean time of ``batch`` launches in milliseconds.

        Args:
            clock: of the device it runs on, for what has none of its own.
            batch: how many.
        """


class WrongResult(Exception):
    """Raised by a launch or a comparison: the output is wrong, and the message says how."""


class Kernel(Family):
    """A tunable program: what it computes, the knobs it has, how to build and check it.

    To add one, subclass, fill in the abstract members, and register the class under the entry
    point ``foretune.kernels``.

    Of the analytic side (`foretune.family.Family`) it must have `cost` and may have `derived`.
    """

    problem_parameters: tuple[ProblemParameter, ...]
    device_kind: Literal["cpu", "gpu"] = "cpu"
    """What it runs on."""
    is_importable_remotely: bool = True
    """Whether another machine can import its code: it is in modules, not in a script or a file."""
    location: str = ""
    """``FILE.py:NAME`` or ``MODULE:NAME`` where it was found; empty if it is registered."""
    space_id: str = ""
    """Identifies its configurations where users change these without changing the code."""
    reports_own_time: bool = False
    """Whether every launch is a `SelfTimedLaunch` that needs no clock of the device."""
    tolerance: float = 1e-4
    """Largest accepted ``‖output − reference‖ / ‖reference‖``."""

    @abstractmethod
    def space(self, problem: Problem) -> SearchSpace:
        """Return the legal configurations for ``problem``."""

    @abstractmethod
    def default(self, problem: Problem) -> Configuration:
        """Return the configuration a sensible person would write without tuning."""

    @abstractmethod
    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return random inputs of ``problem``; the same for the same seed."""

    @abstractmethod
    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Compile ``config``, prepare what is prepared once, and return the timed call."""

    @abstractmethod
    def reference(self, inputs: Inputs) -> Any:
        """Return the right output, computed plainly and in higher precision."""

    @abstractmethod
    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return ``n`` different problems that a predictor should see to know this kernel."""

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return the name and call of the best library routine for ``problem``, or None."""
        return None

    def memory_bytes(self, problem: Problem) -> float:
        """Return roughly how much memory a run takes; twice its traffic unless overridden."""
        return 2.0 * float(self.cost(problem, self.default(problem)).bytes_moved)

    def error_limit(self, problem: Problem, config: Configuration) -> float:
        """Return the largest accepted relative error of ``config`` on ``problem``."""
        return self.tolerance

    def invalidate_output(self, output: Any) -> None:
        """Spoil ``output`` in place, so that a launch that writes nothing cannot look right."""
        if isinstance(output, np.ndarray) and output.dtype.kind == "f":
            output.fill(np.nan)

    def problem(self, values: Mapping[str, Any] = {}, /, **named: Any) -> Problem:
        """Return a complete, checked problem of this kernel.

        Raises:
            UnknownName, ProblemError: see `foretune.problem.make_problem`.
        """
        return make_problem(self.name, self.problem_parameters, {**values, **named})

    def relative_error(self, output: Any, expected: Any) -> float:
        """Return ``‖output − expected‖ / ‖expected‖``; infinite where anything is not finite."""
        out = np.asarray(output, dtype=np.float64)
        ref = np.asarray(expected, dtype=np.float64)
        if out.shape != ref.shape or not np.isfinite(out).all():
            return float("inf")
        return float(np.linalg.norm(out - ref)) / max(float(np.linalg.norm(ref)), 1e-300)


def latin_hypercube_problems(
    kernel: Kernel, choices: Mapping[str, Sequence[Any]], n: int, seed: int
) -> list[Problem]:
    """Return ``n`` different problems drawn evenly from the values in ``choices``.

    Each parameter is stratified on its own (Latin hypercube): every value of every parameter
    occurs about equally often, so few problems cover the range.
    """
    rng = np.random.default_rng(seed)
    problems: dict[Problem, None] = {}
    for _ in range(100):
        columns = {
            name: rng.permutation(np.resize(rng.permutation(len(values)), n))
            for name, values in choices.items()
        }
        for i in range(n):
            values = {name: choices[name][int(column[i])] for name, column in columns.items()}
            problems.setdefault(kernel.problem(values))
            if len(problems) == n:
                return list(problems)
    return list(problems)
