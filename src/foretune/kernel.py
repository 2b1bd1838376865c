"""Kernels: the interface of tunable programs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from foretune.family import Family
from foretune.problem import Problem, ProblemParameter, make_problem
from foretune.relative_error import relative_error
from foretune.space import Configuration, SearchSpace

Inputs = dict[str, Any]
"""Named arrays, as `Kernel.make_inputs` returns them."""

Launch = Callable[[], Any]
"""Runs the kernel once and returns its output; everything untimed is already done."""

MAX_HYPERCUBES = 100
"""Latin hypercubes that are drawn to find enough different problems."""


class Clock(Protocol):
    """Times launches."""

    def sample_ms(self, launch: Launch, batch: int) -> float:
        """Return the mean time of ``batch`` consecutive launches, in milliseconds."""


class SelfTimedLaunch(ABC):
    """A launch that measures its own time, e.g. a program or OpenCL events.

    The time must be positive and no longer than the wall time of the call.
    """

    is_one_run: bool = False
    """Whether a sample is one run for any batch, and the checked run serves as warm-up."""

    @abstractmethod
    def __call__(self) -> Any:
        """Launch once on the original inputs, untimed, and return the output."""

    @abstractmethod
    def sample_ms(self, clock: Clock, batch: int) -> float:
        """Return the mean time of ``batch`` launches in milliseconds.

        ``clock`` is the device's, for launches that have none.
        """

    def reset(self) -> None:
        """Load the inputs' present values; by default, every call does that."""

    def output(self, returned: Any) -> Any:
        """Return the last timed launch's output, which later launches do not change.

        ``returned`` is what the timed call returned; None if the launch does not use the clock.
        """
        return self()


@dataclass(frozen=True)
class SpecialInputs:
    """Inputs with unusual values, what messages call them, and the correct output."""

    name: str
    inputs: Inputs
    expected: Any


class WrongResult(Exception):
    """The output of a launch is wrong; the message says how."""


class Kernel(Family):
    """A tunable program: its problems, search space, build, reference and cost.

    Subclass it, implement the abstract members, and register the class under the entry point
    ``foretune.kernels``. `cost` is required, `derived` is optional (`foretune.family.Family`).
    """

    problem_parameters: tuple[ProblemParameter, ...]
    device_kind: Literal["cpu", "gpu"] = "cpu"
    is_importable_remotely: bool = True
    """Whether another machine can import its code: from modules, not from a script or a file."""
    location: str = ""
    """``FILE.py:NAME`` or ``MODULE:NAME``; empty if the kernel is registered."""
    space_id: str = ""
    """Identifies the search space if it can change without the code."""
    reports_own_time: bool = False
    """Whether every launch is a `SelfTimedLaunch` that needs no device clock."""
    constant_inputs: tuple[str, ...] = ("w", "weights")
    """Inputs that `build` may prepare, such as weights that it packs. The values of all others are
    replaced between launches, so `build` reads only their shapes."""
    tolerance: float = 1e-4
    """Maximum accepted relative error, see `foretune.relative_error`."""

    @abstractmethod
    def space(self, problem: Problem) -> SearchSpace:
        """Return the legal configurations for ``problem``."""

    @abstractmethod
    def default(self, problem: Problem) -> Configuration:
        """Return a sensible configuration without tuning: the baseline."""

    @abstractmethod
    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return random inputs of ``problem``, the same for the same seed."""

    def special_inputs(
        self, problem: Problem, rng: np.random.Generator
    ) -> "Iterator[SpecialInputs]":
        """Yield inputs with special values, on which outputs are also checked; by default none.

        Their shapes are those of `make_inputs`.
        """
        yield from ()

    def describe_values(self, problem: Problem) -> str:
        """Return on which values a verification rests, for its report."""
        return "new values in every round"

    @abstractmethod
    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Compile ``config``, do all one-time work, and return the timed call.

        The call must leave the inputs as they are, except for arrays that it returns.
        """

    @abstractmethod
    def reference(self, inputs: Inputs) -> Any:
        """Return the correct output, computed simply and in higher precision."""

    @abstractmethod
    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return ``n`` different problems to train a predictor on."""

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return the name and launch of the best library routine for ``problem``, or None."""
        return None

    def memory_bytes(self, problem: Problem) -> float:
        """Estimate the memory of a run, in bytes; by default twice its traffic."""
        return 2.0 * float(self.cost(problem, self.default(problem)).bytes_moved)

    def error_limit(self, problem: Problem, config: Configuration) -> float:
        """Return the maximum accepted relative error of ``config`` on ``problem``."""
        return self.tolerance

    def invalidate_output(self, output: Any) -> None:
        """Overwrite ``output``, so that a launch that writes nothing fails the check.

        Fractions become NaN, whole numbers and booleans their complement.
        """
        if not isinstance(output, np.ndarray) or not output.flags.writeable:
            return
        if output.dtype.kind in "fc":
            output.fill(np.nan)
        elif output.dtype.kind in "biu":
            np.invert(output, out=output)

    def problem(self, values: Mapping[str, Any] = {}, /, **named: Any) -> Problem:
        """Return a complete, checked problem; see `make_problem` for the errors it raises."""
        return make_problem(self.name, self.problem_parameters, {**values, **named})

    def relative_error(self, output: Any, expected: Any) -> float:
        """Return the error of the worst element, see `foretune.relative_error`."""
        return relative_error(output, expected)


def latin_hypercube_problems(
    kernel: Kernel, choices: Mapping[str, Sequence[Any]], n: int, seed: int
) -> list[Problem]:
    """Return ``n`` different problems, a Latin hypercube sample of the values in ``choices``.

    Every value of every parameter occurs about equally often, so a few problems cover the range.
    """
    rng = np.random.default_rng(seed)
    problems: dict[Problem, None] = {}
    for _ in range(MAX_HYPERCUBES):
        # A column of n positions per parameter: each value about equally often, in random order.
        positions = {}
        for name, values in choices.items():
            each_once = rng.permutation(len(values))
            positions[name] = rng.permutation(np.resize(each_once, n))

        for i in range(n):
            problem_values = {name: choices[name][int(positions[name][i])] for name in choices}
            problems.setdefault(kernel.problem(problem_values))
            if len(problems) == n:
                return list(problems)
    return list(problems)
