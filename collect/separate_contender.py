"""One configuration alone in its process, which answers with its outputs as data.

A configuration may replace anything in its process: clock, comparison, guard, the answers
themselves. So nothing that its process says about itself counts. Another process, in which no
configuration runs, times the requests by its own clock and compares the outputs; see
`foretune.tune.separate_check`.

The process of the default also says which inputs it accepts, and what is right for them.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.collect.comparison import expected_result
from foretune.collect.wrapped import values as arrays
from foretune.collect.wrapped.call_arguments import CallResult, ResettingLaunch
from foretune.collect.wrapped.output_data import describe_result
from foretune.collect.wrapped.shared_memory import Effects
from foretune.collect.wrapped.special_values import KINDS_OF_SPECIAL_VALUES
from foretune.collect.wrapped.wrapped import WrappedKernel
from foretune.errors import ForetuneError, MeasurementError, describe_error, first_line
from foretune.kernel import Inputs, WrongResult
from foretune.problem import Problem
from foretune.space import Configuration

GIVEN = "given"
REDRAWN = "redrawn"
"""Kinds of inputs, beside the names of special values."""
InputCase = tuple[str, int]
"""The kind of some inputs, and the seed from which they are made; the same in every process."""
Ways = tuple[str, ...]
"""How new values are drawn, see `WrappedKernel.ways_to_draw`."""


@dataclass
class _Call:
    """A launch, and the inputs that it reads."""

    inputs: Inputs
    launch: ResettingLaunch
    returned: Any = None


class SeparateContender:
    """Serves one configuration."""

    def __init__(self, kernel: WrappedKernel, problem: Problem, config: Configuration) -> None:
        self._kernel = kernel
        self._problem = problem
        self._config = config
        self._calls: list[_Call] = []
        self._effects: Effects | None = None
        self._wait: Callable[[], None] = lambda: None  # a call on the host ends when it returns

    def ways_to_draw(self) -> Ways:
        """Return how new values are drawn. This runs the default."""
        return self._kernel.ways_to_draw(self._problem)

    def draw_in(self, ways: Ways) -> None:
        """Draw new values in these ways."""
        self._kernel.draw_in(self._problem, ways)

    def accepted_special_values(self, seed: int, names: Sequence[str]) -> tuple[str, ...]:
        """Return which special values the default accepts. This runs the default."""
        return tuple(
            name
            for name in names
            if self._kernel.accepts(self._problem, KINDS_OF_SPECIAL_VALUES[name], seed)
        )

    def expected(self, case: InputCase) -> Any:
        """Return the correct result on some inputs, described. This runs the default."""
        kind, _ = case
        special = KINDS_OF_SPECIAL_VALUES.get(kind)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if special is None:
                return describe_result(expected_result(self._kernel, self._inputs(case)))
            right = self._kernel.reference(self._inputs(case))
            right.shift = special.shift
            return describe_result(right)

    def prepare(self, cases: Sequence[InputCase]) -> int:
        """Draw the inputs of one call each, at earlier addresses; return their bytes."""
        del self._calls[len(cases) :]
        for number, case in enumerate(cases):
            inputs = self._inputs(case)
            if number < len(self._calls):
                call = self._calls[number]
                if _differ_in_arrays_only(call.inputs, inputs):
                    arrays.assign_all(call.inputs, inputs)
                    call.launch.reset()
                    continue
                self._calls[number] = self._make_call(inputs)
            else:
                self._calls.append(self._make_call(inputs))
        return arrays.bytes_of([call.inputs for call in self._calls])

    def run(self) -> str:
        """Call once on each of the prepared inputs; return why that failed, or ""."""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                for call in self._calls:
                    call.returned = call.launch.run()
                self._wait()
        except ForetuneError:
            raise
        except Exception as e:
            return describe_error(e)
        return ""

    def outputs(self) -> list[Any]:
        """Return the described results of the last calls."""
        outputs = []
        for call in self._calls:
            try:
                output = call.launch.output(call.returned)
            except WrongResult as e:
                raise MeasurementError(first_line(e)) from e
            effects = self._effects or frozenset()
            outputs.append(describe_result(CallResult(output.returned, output.written, effects)))
        return outputs

    def idle(self) -> None:
        """Do nothing; how long that takes is the duration of a request."""

    def _inputs(self, case: InputCase) -> Inputs:
        kind, seed = case
        if kind == GIVEN:
            return self._kernel.make_inputs(self._problem)
        if kind == REDRAWN:
            return self._kernel.make_inputs(self._problem, seed)
        return self._kernel.inputs_with(self._problem, KINDS_OF_SPECIAL_VALUES[kind], seed)

    def _make_call(self, inputs: Inputs) -> _Call:
        if self._kernel.device_kind == "gpu":
            self._wait = sys.modules["torch"].cuda.synchronize
        inputs = arrays.copy_arrays(inputs)  # the next values are written into them
        launch = self._kernel.build(self._problem, self._config, inputs)
        if not isinstance(launch, ResettingLaunch):
            raise MeasurementError(f"{self._kernel.name} gives no output that can be sent")
        call = _Call(inputs, launch)
        if self._effects is None:  # the first two calls show what the result shares its memory with
            self._kernel.invalidate_output(launch())
            self._effects = launch().effects
            launch.reset()
        return call


def _differ_in_arrays_only(inputs: Inputs, others: Inputs) -> bool:
    """Whether other inputs can be written into the arrays of some: all objects are the same."""
    pairs = zip(arrays.leaves(inputs), arrays.leaves(others), strict=False)
    same_objects = all(
        one is other or isinstance(one, arrays.IMMUTABLE_TYPES) or arrays.is_array(one)
        for one, other in pairs
    )
    return same_objects and arrays.have_same_layout(inputs, others)
