"""Tunes Python functions: in one call, or with a decorator on the first call of each shape."""

import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any, Unpack

from foretune.collect.devices import local_device
from foretune.collect.worker_environment import is_worker
from foretune.collect.wrapped.function import FunctionKernel, OutputCheck, parameters_of
from foretune.collect.wrapped.values import is_array, shape_of
from foretune.collect.wrapped.wrapped import CostOf, Restrictions
from foretune.device import Device
from foretune.errors import ForetuneError, UsageError, warn
from foretune.objective import ConstrainedObjective, Objective
from foretune.problem import Problem
from foretune.tune.functions.result import Best
from foretune.tune.functions.tuning import TuneOptions, tune_wrapped
from foretune.tune.job import check_options
from foretune.tune.store.cache import MeasurementCache
from foretune.values import Value


def tune_function(
    function: Callable[..., Any],
    knobs: Mapping[str, Sequence[Value]],
    args: Sequence[Any] | Callable[..., Sequence[Any]] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    check: Any = None,
    verify: OutputCheck | None = None,
    tolerance: float | None = None,
    restrictions: Restrictions = None,
    default: Mapping[str, Any] | None = None,
    problem: Mapping[str, Any] = {},
    name: str | None = None,
    cost: CostOf | None = None,
    pinned: Sequence[str] = (),
    **options: Unpack[TuneOptions],
) -> Best:
    """Find the fastest keyword arguments of a function, and verify them.

    Configurations run in another process with unchanged arguments. Their output, including arrays
    that they write into, is compared with the correct output.

    Args:
        function: any Python function, for example with NumPy, Numba or torch.
        knobs: keyword argument -> values to choose from.
        args: positional arguments; or a function of ``problem`` that returns them.
        kwargs: other named arguments.
        check: a function of the same arguments that returns the correct output; by default the
            output of the default configuration. Or the correct output itself, which only fits
            ``args``, so the verification cannot use other values.
        verify: judges an output: ``verify(correct, output)``; by default, the relative difference
            must not exceed ``tolerance``.
        tolerance: largest accepted relative error, see `foretune.relative_error`. By default, it
            depends on the type of the output's numbers: 1e-9 in double, 1e-5 in single precision;
            whole numbers must be equal.
        restrictions: rules between knobs: ``"block * unroll <= 64"``, or functions of knobs.
        default: configuration to compare with; by default the function's own defaults.
        problem: arguments of ``args`` if it is a function.
        name: name in the store; by default the function's name.
        cost: returns operations and bytes of a problem and configuration (`foretune.Cost`); without
            it, a predictor has no roofline.
        pinned: arguments whose values must stay. For other arrays of fractions, the verification
            draws new values of the same shape, range and distribution.
        options: budget, searcher, store and so on, see `TuneOptions`.

    Raises:
        UsageError: the function takes no argument of a knob's name, or an option is invalid.
        MeasurementError: the default fails or is wrong, or the output differs between calls.
    """
    check_options(options, TuneOptions, function=tune_function)
    kernel = FunctionKernel(
        function,
        knobs,
        args,
        kwargs,
        check=check,
        verify=verify,
        tolerance=tolerance,
        restrictions=restrictions,
        default=default,
        name=name,
        cost=cost,
        device_kind="cpu" if options.get("device", "cpu") == "cpu" else "gpu",
        pinned=pinned,
    )
    return tune_wrapped(kernel, options, problem)


class Tunable:
    """A function that chooses its knobs on the first call of each shape; see `tunable`."""

    def __init__(
        self,
        function: Callable[..., Any],
        knobs: Mapping[str, Sequence[Value]],
        kernel_options: Mapping[str, Any],
        options: TuneOptions,
    ) -> None:
        functools.update_wrapper(self, function)
        check_options(options, TuneOptions)
        self.function, self.knobs, self._options = function, dict(knobs), options
        self._kernel_options = dict(kernel_options)
        self._inputs = self._kernel_options.pop("inputs", None)
        self._chosen: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._lock, self._is_tuning = threading.RLock(), False
        self._positional = [
            n for n, p in parameters_of(function).items() if p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        places = [i for i, name in enumerate(self._positional) if name in self.knobs]
        self._first_knob = min(places, default=len(self._positional))
        self.kernel()  # a wrong knob is refused here, not at the first call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the choice for arguments of this shape.

        Knobs among the arguments override it.
        """
        if self._first_knob < len(args) <= len(self._positional):  # a knob without its name
            first = self._first_knob
            kwargs = dict(zip(self._positional[first:], args[first:], strict=False)) | kwargs
            args = args[:first]
        if self.knobs.keys() <= kwargs.keys():
            return self.function(*args, **kwargs)
        named = ((n, _argument_key(v)) for n, v in sorted(kwargs.items()))
        key = (*map(_argument_key, args), *named)
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = self._choose(key, args, kwargs)
        return self.function(*args, **{**chosen, **kwargs})

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind to an object, as a method of its class."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the plain function, because a measuring process must not tune."""
        return _identity, (self.function,)

    def tune(self, *args: Any, **kwargs: Any) -> Best:
        """Tune for these arguments now; stored measurements are reused."""
        return tune_wrapped(self.kernel(args, kwargs), self._options)

    def kernel(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> FunctionKernel:
        """Return the function as a kernel, for these arguments or the problems of ``inputs``."""
        made = self._inputs if args is None else args
        return FunctionKernel(
            self.function, self.knobs, () if made is None else made, kwargs, **self._kernel_options
        )

    @property
    def has_inputs(self) -> bool:
        """Whether it can create arguments for a problem."""
        return self._inputs is not None

    def _choose(
        self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        with self._lock:
            if key in self._chosen:
                return self._chosen[key]
            kernel = self.kernel(args, {n: v for n, v in kwargs.items() if n not in self.knobs})
            problem = kernel.problem()
            if self._is_tuning:  # it calls itself while it is measured in this process
                return dict(kernel.default(problem))
            try:
                self._is_tuning = True
                chosen = self._stored_choice(kernel, problem)
                if chosen is None and is_worker():  # within a measurement of another one
                    chosen = dict(kernel.default(problem))
                if not chosen:
                    best = self.tune(*args, **kernel.kwargs)
                    chosen = best.config
                    if self._options.get("progress", True) is True:  # nobody else will say it
                        print(best.headline, file=sys.stderr)
            except UsageError:
                raise
            except ForetuneError as e:
                warn(f"{kernel.name} runs with its default: {e}", stacklevel=4)
                chosen = dict(kernel.default(problem))
            finally:
                self._is_tuning = False
            self._chosen[key] = chosen
            return chosen

    def _stored_choice(self, kernel: FunctionKernel, problem: Problem) -> dict[str, Any] | None:
        """Return the stored choice, which any process may have made."""
        if self._options.get("limits"):
            return None
        objective = ConstrainedObjective(Objective(self._options.get("objective", "time")), ())
        device = _device(self._options.get("device", "cpu"))
        cache = MeasurementCache.for_kernel(kernel, device, self._options.get("store"))
        choice = cache.choice(problem, objective, among=kernel.space(problem))
        return None if choice is None else dict(choice.config)


def tunable(
    more_knobs: Mapping[str, Sequence[Value]] = {},
    /,
    *,
    inputs: Callable[..., Sequence[Any]] | None = None,
    check: Any = None,
    verify: OutputCheck | None = None,
    tolerance: float | None = None,
    restrictions: Restrictions = None,
    default: Mapping[str, Any] | None = None,
    name: str | None = None,
    cost: CostOf | None = None,
    pinned: Sequence[str] = (),
    options: TuneOptions | None = None,
    **knobs: Sequence[Value],
) -> Callable[[Callable[..., Any]], Tunable]:
    """Let a function choose some of its arguments on the first call of each shape.

    ::

        @foretune.tunable(block=[16, 32, 64], unroll=[1, 2, 4])
        def smooth(image, block=32, unroll=1): ...

    The choice is stored, so the next process measures nothing. Calls are distinguished by shapes
    and types of arrays, integers and strings, but not by floats. If tuning fails, the function runs
    with its defaults, after one warning.

    ``more_knobs`` are for knobs with names that this decorator uses. ``inputs`` returns arguments
    for sizes (``inputs(N=4096)``), for ``foretune tune FILE:NAME``. ``options`` are those of
    `TuneOptions`; the others are those of `foretune.tune_function`. ``default`` is used until there
    is a choice. Raises UsageError if the function takes no argument of a knob's name.
    """
    kernel_options = {
        "inputs": inputs,
        "check": check,
        "verify": verify,
        "tolerance": tolerance,
        "restrictions": restrictions,
        "default": default,
        "name": name,
        "cost": cost,
        "pinned": pinned,
    }

    def wrap(function: Callable[..., Any]) -> Tunable:
        if not callable(function):
            raise UsageError("write @foretune.tunable(block=[…]) with the knobs in brackets")
        return Tunable(function, {**more_knobs, **knobs}, kernel_options, options or {})

    return wrap


def _argument_key(value: Any) -> Any:
    """Return a key of a call's argument that is fast to compute."""
    if is_array(value):
        return (getattr(value, "dtype", "list"), getattr(value, "shape", len(value)))
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        return tuple(map(_argument_key, value))
    if isinstance(value, dict):
        return tuple(map(_argument_key, value.values()))
    return type(value), shape_of(value)


def _identity(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@functools.cache
def _device(name: str) -> Device:
    return local_device(name, measure=False)
