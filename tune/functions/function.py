"""Tunes a Python function in one call."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from foretune.collect.wrapped.function import FunctionKernel, OutputCheck
from foretune.collect.wrapped.wrapped import CostOf, Restrictions
from foretune.tune.functions.result import Best
from foretune.tune.functions.tuning import TuneOptions, tune_wrapped
from foretune.tune.job import check_options


def tune_function(
    function: Callable[..., Any],
    knobs: Mapping[str, Sequence[Any]],
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
    identity: str | None = None,
    **options: Unpack[TuneOptions],
) -> Best:
    """Find the fastest keyword arguments of a function, and verify them.

    Configurations run in another process with unchanged arguments. Their output, including arrays
    that they write into, is compared with the correct output.

    Args:
        function: any Python function, for example with NumPy, Numba or torch.
        knobs: keyword argument -> values to choose from: numbers, texts, None, tuples, members of
            enums, functions, classes, and other objects whose text is the same in every process.
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
        identity: names what the function works on. By default, everything that it reads counts as
            part of the work (its code, globals, closure, object and arguments, see
            `foretune.support.identity`). A name replaces that: use it if something cannot be read,
            or changes although the work is the same.
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
        identity=identity,
    )
    return tune_wrapped(kernel, options, problem)
