"""The problem of a call that needs a choice."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from foretune.collect.versions import toolchain_on
from foretune.device import Device
from foretune.errors import describe_error
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import Subject
from foretune.tune.triton.parameters import (
    aligns,
    is_constant,
    plain_argument,
    specializes,
    triton_parameters,
    undecorated_kernel,
)
from foretune.tune.triton.runtime import current_device_index, device_at
from foretune.tune.triton.source_hash import decorated_hash
from foretune.values import Value


@dataclass(frozen=True)
class Call:
    """A call that needs a configuration; its grid is a tuple or a function of the arguments.

    ``problem`` has the values of key arguments and constants, dtypes, and ``specialized``: the
    arguments that are 1 or divisible by 16. ``function`` is the kernel below the tuner, None if it
    cannot be compiled here.
    """

    kernel: str
    source: str
    problem: Problem
    arguments: Mapping[str, Any]
    device: Device
    grid: tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]] | None
    function: Any = None

    @cached_property
    def subject(self) -> Subject:
        """The function, device and versions under which results are stored."""
        return Subject(self.kernel, self.source, self.device.name, toolchain_on(self.device, "gpu"))

    def programs(self, knobs: Mapping[str, Any]) -> float:
        """Return the number of programs of a configuration; NaN if unknown."""
        grid = self.grid
        try:
            if callable(grid):
                grid = grid({**self.arguments, **knobs})
            return float(math.prod(map(int, grid))) if grid else math.nan
        except Exception:  # the user's function may need more arguments
            return math.nan

    def success(
        self, config: Configuration, time_ms: float, samples_ms: Sequence[float], **more: Any
    ) -> Measurement:
        """Return a successful measurement; ``more`` are further fields."""
        samples = tuple(sorted(samples_ms))
        return self._measurement(
            config, Status.OK, time_ms=time_ms, time_ms_samples=samples, **more
        )

    def failure(
        self, config: Configuration, status: Status, reason: str | BaseException
    ) -> Measurement:
        """Return a failed measurement."""
        error = describe_error(reason) if isinstance(reason, BaseException) else reason
        return self._measurement(config, status, error=error)

    def _measurement(self, config: Configuration, status: Status, **more: Any) -> Measurement:
        return Measurement(
            self.kernel,
            self.problem,
            config,
            self.device.name,
            status,
            environment=self.subject.versions,
            **more,
        )


def make_call(
    function: Any,
    keys: Sequence[str],
    named: Mapping[str, Any],
    bucket: Callable[[str, Any], Any] | None = None,
    hook: Callable[..., Any] | None = None,
    **tags: str,
) -> Call:
    """Return a call of a kernel; see `problem_from_arguments`.

    ``function`` is the kernel, which heuristics may decorate. ``named`` has the arguments by name,
    and ``grid``; other entries are ignored. ``hook`` is the user's hook of the tuner. ``tags`` are
    further parameters of the problem (`Options.problem_tags`).
    """
    source = decorated_hash(function, hook)
    function = undecorated_kernel(function)
    arguments = {name: value for name, value in named.items() if name in function.arg_names}
    problem = problem_from_arguments(function, keys, arguments, bucket)
    return Call(
        kernel=function.__name__,
        source=source,
        problem=Problem(problem, **tags),
        arguments=arguments,
        device=device_at(current_device_index()),
        grid=named.get("grid"),
    )


def problem_from_arguments(
    function: Any,
    keys: Sequence[str],
    arguments: Mapping[str, Any],
    bucket: Callable[[str, Any], Any] | None = None,
) -> Problem:
    """Return the problem of a call of the undecorated kernel ``function``.

    It has the values of ``keys`` and of constants, and the dtypes of tensors, also of those in
    tuples. ``bucket`` maps name and value of a key argument to its bucket.
    """
    parameters = triton_parameters(function)
    problem: dict[str, Value] = {}
    specialized: list[str] = []
    for name in function.arg_names:
        if name not in arguments:
            continue
        parameter = parameters.get(name)
        is_constant_here = is_constant(parameter)
        by_value = name in keys or is_constant_here

        # Of a tuple, each part counts as an argument, unless the value of the tuple counts.
        given = arguments[name]
        for part_name, part in [(name, given)] if by_value else _parts(name, given):
            value = plain_argument(part)
            # A tensor counts by its type, a key by its bucket, a constant by its value.
            if hasattr(value, "dtype"):
                problem[f"{part_name}.dtype"] = str(value.dtype).removeprefix("torch.")
            elif name in keys and bucket is not None:
                problem[name] = plain_value(bucket(name, value))
            elif by_value:
                problem[name] = plain_value(value)

            value_class = "" if is_constant_here else _specialization(value, parameter)
            if value_class:
                specialized.append(f"{part_name}:{value_class}")
    problem["specialized"] = " ".join(specialized)
    return Problem(problem)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an argument and its name; of a tuple, all parts, with their position in the name."""
    if not isinstance(value, tuple):
        yield name, value
        return
    for position, part in enumerate(value):
        yield from _parts(f"{name}.{position}", part)


def _specialization(value: Any, parameter: Any) -> str:
    """Return the class of values on which Triton specializes an argument: 1, 16 or neither."""
    if type(value) is int and value == 1:
        return "1" if specializes(parameter) else ""
    number = value.data_ptr() if hasattr(value, "data_ptr") else value
    is_divisible = type(number) is int and number % 16 == 0
    return "16" if is_divisible and aligns(parameter) else ""


def plain_value(value: Any) -> Value:
    """Return a value as a table can hold it: a number, text or its `repr`."""
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value if isinstance(value, (bool, int, float, str)) else repr(value)
