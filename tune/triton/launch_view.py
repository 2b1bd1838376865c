"""Translates runs of a `TritonKernel` to launches of its ``@triton.jit`` function, and back.

The kernel describes a problem by sizes and layouts, the decorator by arguments. Runs with a single
launch are stored in both forms. The function's form has the values of all arguments, because the
key of a later decorator is unknown.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import triton

from foretune.collect.kernels.triton_kernel import TritonKernel
from foretune.collect.versions import toolchain
from foretune.device import Device
from foretune.kernel import Inputs
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import Choice, Subject
from foretune.tune.store.subject import source_label
from foretune.tune.triton.kernel import LAUNCH_OPTIONS, to_configuration
from foretune.tune.triton.kernel_source import source_hash
from foretune.tune.triton.problem_key import problem_from_arguments


@dataclasses.dataclass(frozen=True)
class FunctionLaunch:
    """A kernel's run as a launch of its function.

    Attributes:
        subject: the function.
        problem: values and types of all arguments except constants.
        config: constants and compiler options.
        programs: number of programs.
    """

    subject: Subject
    problem: Problem
    config: Configuration
    programs: float


class LaunchView:
    """Translates runs of a kernel on a device."""

    def __init__(self, kernel: TritonKernel, device: Device) -> None:
        self._kernel = kernel
        self._device = device
        self._inputs = lru_cache(maxsize=2)(kernel.inputs_without_data)

    def function_launch(self, problem: Problem, config: Configuration) -> FunctionLaunch | None:
        """Return a run's launch; None for several launches or a warm cache."""
        if problem.get("cache") == "warm":  # decorators measure with a cold one
            return None
        inputs: Inputs = self._inputs(problem)
        launches, _ = self._kernel.launches(problem, config, inputs)
        if len(launches) != 1:
            return None
        (one,) = launches
        function = one.function
        named = dict(zip(function.arg_names, one.arguments, strict=False))
        compiled = {n: v for n, v in one.options.items() if n in LAUNCH_OPTIONS}
        constants = {n: v for n, v in one.options.items() if n not in LAUNCH_OPTIONS}
        source = source_hash(function)
        return FunctionLaunch(
            Subject(function.__name__, source, self._device.name, toolchain("gpu")),
            problem_from_arguments(function, function.arg_names, named),
            to_configuration(triton.Config(constants, **compiled)),
            float(math.prod(one.grid)),
        )

    def function_measurement(self, m: Measurement) -> tuple[Subject, Measurement] | None:
        """Return a run in the function's form; None if it has none."""
        launch = self.function_launch(m.problem, m.config)
        if launch is None:
            return None
        return launch.subject, dataclasses.replace(
            m, kernel=launch.subject.kernel, problem=launch.problem, config=launch.config,
            static={**m.static, "programs": launch.programs},
            source=source_label(m.kernel, m.problem), environment=launch.subject.versions,
        )  # fmt: skip

    def function_choice(
        self, problem: Problem, kernel_choice: Choice
    ) -> tuple[Subject, Problem, Choice] | None:
        """Return a choice in the function's form; None if it has none."""
        launch = self.function_launch(problem, kernel_choice.config)
        if launch is None:
            return None
        choice = dataclasses.replace(kernel_choice, config=launch.config)
        return launch.subject, launch.problem, choice

    def stored_measurements(
        self, problem: Problem, read: Callable[[Subject], list[Measurement]]
    ) -> list[Measurement]:
        """Return what decorators measured of ``problem``; ``read`` asks the store."""
        default = self.function_launch(problem, self._kernel.default(problem))
        runs = [] if default is None else read(default.subject)
        translated_before = source_label(self._kernel.name, problem)
        space, found = self._kernel.space(problem), []
        for m in (run for run in runs if run.source != translated_before):
            knobs = {n: m.config[n] for n in space.names if n in m.config}
            if len(knobs) < len(space.names) or (config := Configuration(knobs)) not in space:
                continue
            launch = self.function_launch(problem, config)
            if launch and launch_matches(m.problem, m.config, {**launch.problem, **launch.config}):
                found.append(dataclasses.replace(
                    m, kernel=self._kernel.name, problem=problem, config=config
                ))  # fmt: skip
        return found


def in_call_terms(m: Measurement, problem: Problem, knobs: Sequence[str]) -> Measurement | None:
    """Return a run of the function in the decorator's form; None if it does not fit.

    ``problem`` is the problem of a call; ``knobs`` are the tuned parameters. A run without further
    arguments is returned unchanged.
    """
    if not m.problem.keys() > problem.keys():
        return m
    launch = {**m.problem, **m.config}
    if not knobs or any(name not in launch for name in knobs):
        return None
    return dataclasses.replace(
        m, problem=Problem({n: launch[n] for n in problem}),
        config=Configuration({n: launch[n] for n in knobs}),
    )  # fmt: skip


def launch_matches(problem: Problem, config: Configuration, launch: Mapping[str, Any]) -> bool:
    """Whether a launch runs ``config`` on the decorator's ``problem``.

    ``launch`` has the values of all arguments, constants and compiler options.
    """
    expected = {**problem, **config}
    return all(n in launch and launch[n] == v for n, v in expected.items())
