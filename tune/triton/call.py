"""One call of a kernel, as a problem that can be looked up, predicted and compared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from triton.runtime.jit import JITFunction

from foretune.collect.versions import toolchain
from foretune.device import Device
from foretune.mapping import Value
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import Subject
from foretune.tune.triton.call_plan import aligns, is_constant, specializes
from foretune.tune.triton.descriptors import underlying_tensor
from foretune.tune.triton.kernel_source import source_hash
from foretune.tune.triton.place import current_device_index, device_at


@dataclass(frozen=True)
class Call:
    """A call whose configuration is to be chosen.

    Attributes:
        kernel: the function's name.
        source: identifies its code.
        problem: values of the key arguments and of constants, dtypes, and as ``specialized`` which
            arguments 16 divides or are 1.
        arguments: everything passed, by name.
        device: where.
        grid: as given: a tuple, or a function of the arguments.
        knobs: names of what is tuned.
    """

    kernel: str
    source: str
    problem: Problem
    arguments: Mapping[str, Any]
    device: Device
    grid: tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]] | None
    knobs: tuple[str, ...] = ()

    @cached_property
    def subject(self) -> Subject:
        """What is tuned, where, and with which versions."""
        return Subject(self.kernel, self.source, self.device.name, toolchain("gpu"))

    def programs(self, knobs: Mapping[str, Any]) -> float:
        """Return how many programs a configuration launches; NaN where the grid does not tell."""
        try:
            grid = self.grid({**self.arguments, **knobs}) if callable(self.grid) else self.grid
            count = 1
            for size in grid or ():
                count *= int(size)
        except Exception:  # somebody else's function, asked for something it need not know
            return float("nan")
        return float(count) if grid else float("nan")

    def success(
        self, config: Configuration, time_ms: float, samples_ms: Sequence[float], **more: Any
    ) -> Measurement:
        """Return the measurement of a configuration that ran; ``more`` are other fields of it."""
        samples = tuple(sorted(samples_ms))
        return self._measurement(
            config, Status.OK, time_ms=time_ms, time_ms_samples=samples, **more
        )

    def failure(self, config: Configuration, status: Status, reason: str) -> Measurement:
        """Return the measurement of a configuration that did not run."""
        first = next(iter(reason.splitlines()), "")
        return self._measurement(config, status, error=first[:300])

    def _measurement(self, config: Configuration, status: Status, **more: Any) -> Measurement:
        return Measurement(
            self.kernel, self.problem, config, self.device.name, status,
            environment=self.subject.versions, **more,
        )  # fmt: skip


def make_call(
    function: Any,
    keys: Sequence[str],
    named: Mapping[str, Any],
    kwargs: Mapping[str, Any],
    mode: str = "stall",
    bucket: Callable[[str, Any], Any] | None = None,
) -> Call:
    """Return a call of the plain kernel ``function``.

    Args:
        function: below all decorators.
        keys: names of the arguments whose values make a problem.
        named: positional arguments, by name.
        kwargs: arguments by name, and ``grid``.
        mode: how it is timed: among other work or in a graph, times are other ones.
        bucket: what the value of a key argument counts as.
    """
    arguments = {**named, **{n: v for n, v in kwargs.items() if n in function.arg_names}}
    problem = problem_from_arguments(function, keys, arguments, bucket)
    if mode != "stall":
        problem = Problem(problem, timed=mode)
    return Call(
        function.__name__,
        source_hash(function),
        problem,
        arguments,
        device_at(current_device_index()),
        kwargs.get("grid"),
    )


def problem_from_arguments(
    function: Any,
    keys: Sequence[str],
    arguments: Mapping[str, Any],
    bucket: Callable[[str, Any], Any] | None = None,
) -> Problem:
    """Return what tells calls of the plain kernel ``function`` apart.

    Args:
        function: below all decorators.
        keys: names of the arguments whose values count.
        arguments: by name; of tensors and constants the type or value always counts.
        bucket: what the value of a key argument counts as.
    """
    parameters = triton_parameters(function)
    problem: dict[str, Value] = {}
    special: list[str] = []
    for name in function.arg_names:
        if name not in arguments:
            continue
        parameter, value = parameters.get(name), underlying_tensor(arguments[name])
        if hasattr(value, "dtype"):
            problem[f"{name}.dtype"] = str(value.dtype).removeprefix("torch.")
        elif name in keys or is_constant(parameter):
            problem[name] = _plain_value(bucket(name, value) if bucket and name in keys else value)
        if not is_constant(parameter) and (how := _specialization(value, parameter)):
            special.append(f"{name}:{how}")
    problem["specialized"] = " ".join(special)
    return Problem(problem)


def undecorated_kernel(fn: Any) -> Any:
    """Return the kernel below its decorators: Triton's `JITFunction`, or the interpreter's."""
    while not isinstance(fn, JITFunction) and hasattr(fn, "fn") and hasattr(fn.fn, "arg_names"):
        fn = fn.fn
    return fn


def triton_parameters(function: Any) -> dict[str, Any]:
    """Return Triton's description of each argument, by name; none in the interpreter."""
    return {p.name: p for p in getattr(function, "params", ())}


def _specialization(value: Any, parameter: Any) -> str:
    """Return the class of values for which Triton compiles this argument."""
    if not specializes(parameter):
        return ""
    if type(value) is int and value == 1:
        return "1"
    number = value.data_ptr() if hasattr(value, "data_ptr") else value
    divisible = type(number) is int and number % 16 == 0 and aligns(parameter)
    return "16" if divisible else ""


def _plain_value(value: Any) -> Value:
    if isinstance(value, float) and value != value:
        return "nan"
    return value if isinstance(value, (bool, int, float, str)) else repr(value)
