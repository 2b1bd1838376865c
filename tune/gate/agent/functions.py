"""Benchmarks that are plain functions: ``bench_NAME``, with inputs from ``inputs_NAME(seed)``."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from foretune.tune.gate.agent.timed_call import Arguments, TimedCall

PREFIX = "bench_"
INPUTS_PREFIX = "inputs_"
SEED = "seed"

Serve = Callable[[Any], None]
"""Answers requests about a `TimedCall` or `ProgramCall` until the benchmark is closed."""


class FunctionBenchmark:
    """A function ``bench_NAME``; all that it does is timed.

    If the module has ``inputs_NAME``, that returns the arguments, as a tuple, or one value. It may
    take a ``seed``. An attribute ``number`` of the function is the number of calls that may share
    arguments.
    """

    def __init__(
        self, function: Callable[..., Any], make_inputs: Callable[..., Any] | None
    ) -> None:
        self._function = function
        self._make_inputs = make_inputs

    def run(self, serve: Serve) -> None:
        """Serve the function."""
        number = getattr(self._function, "number", None)
        make = None if self._make_inputs is None else self._arguments
        serve(TimedCall(self._function, make, calls=number))

    def _arguments(self, seed: int) -> Arguments:
        assert self._make_inputs is not None
        takes_seed = SEED in inspect.signature(self._make_inputs).parameters
        inputs = self._make_inputs(seed=seed) if takes_seed else self._make_inputs()
        return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def find_functions(module: Any) -> Iterator[tuple[str, FunctionBenchmark | str]]:
    """Yield names with benchmarks, or with the reason why a function is none."""
    for name, function in list(vars(module).items()):
        is_own = getattr(function, "__module__", None) == module.__name__
        if not name.startswith(PREFIX) or not inspect.isfunction(function) or not is_own:
            continue
        make_inputs = getattr(module, INPUTS_PREFIX + name[len(PREFIX) :], None)
        if inspect.iscoroutinefunction(function):
            yield name, "it is a coroutine: call asyncio.run in a plain function"
        elif make_inputs is None and _required_parameters(function):
            inputs_name = INPUTS_PREFIX + name[len(PREFIX) :]
            yield name, f"it needs arguments: define {inputs_name}(seed), which returns them"
        elif make_inputs is not None and _required_parameters(make_inputs, but=SEED):
            yield name, f"{make_inputs.__name__} may take a seed only: give its parameters defaults"
        else:
            yield name, FunctionBenchmark(function, make_inputs)


def _required_parameters(function: Callable[..., Any], but: str = "") -> bool:
    """Whether a function needs arguments, apart from one of the name ``but``."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(
        parameter.default is parameter.empty
        and parameter.kind not in kinds
        and parameter.name != but
        for parameter in inspect.signature(function).parameters.values()
    )
