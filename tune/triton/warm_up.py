"""Tunes recorded calls ahead of use."""

import dataclasses
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import triton

from foretune.collect.compiled.arguments import Tensor
from foretune.errors import UsageError
from foretune.registry import object_at
from foretune.tune.triton.autotuner import Autotuner
from foretune.tune.triton.call_recorder import RecordedCall
from foretune.tune.triton.call_tuner import CallTunerFactory
from foretune.tune.triton.parameters import is_descriptor
from foretune.tune.triton.runtime import is_interpreted, require_device


class WarmedCall(NamedTuple):
    """The choice for a recorded call."""

    call: RecordedCall
    config: triton.Config
    time_ms: float  # NaN if it was not measured
    measured: int  # number of measured configurations, including earlier ones


def warm_up(calls: Iterable[RecordedCall], store: str | None = None) -> Iterator[WarmedCall]:
    """Tune calls and yield their choices; UsageError without a device or a decorated kernel.

    Float tensors get random numbers; integer tensors get zeros, because they may be indices.
    Results go to ``store``, by default to the store of each kernel's decorator.
    """
    require_device()
    device = "cpu" if is_interpreted() else triton.runtime.driver.active.get_active_torch_device()
    for call in calls:
        kernel = _load_decorated(call.kernel)
        options = kernel.options
        if store is not None:
            options = dataclasses.replace(options, store=store)
        if options.mode == "serve":  # the server measures nothing: this is the time to measure
            options = dataclasses.replace(options, mode="stall")
        if options != kernel.options:
            kernel.options = options
            kernel.tuner_factory = CallTunerFactory(options)
        yield _warm_up_one(kernel, call, device)


def _warm_up_one(kernel: Autotuner, call: RecordedCall, device: Any) -> WarmedCall:
    """Call the kernel once with new arguments of the recorded kind, which tunes it."""
    args = [allocate_argument(argument, device) for argument in call.args]
    kwargs = {name: allocate_argument(argument, device) for name, argument in call.kwargs.items()}
    parameters = inspect.signature(kernel.base_fn).parameters

    def changes(entry: Mapping[str, Any]) -> int:
        constants = {name: value for name, value in entry.items() if name in parameters}
        return sum(parameters[name].default != value for name, value in constants.items())

    # Entries may set different constants, and a launch has defaults for the others: of those that
    # fit, the launched one is that which changes the most.
    entries = sorted((config.kwargs for config in kernel.configs), key=changes, reverse=True)

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        for entry in entries:
            # A grid does not see compiler options, such as waves_per_eu.
            if all(meta[name] == value for name, value in entry.items() if name in meta):
                return call.programs(entry)
        return call.programs({name: meta[name] for name in entries[0]})

    kernel.configs_timings = {}
    kernel[grid](*args, **kwargs)
    timings = kernel.configs_timings
    times_ms = np.ravel(timings.get(kernel.best_config, math.nan))  # quantiles, or one number
    return WarmedCall(
        call=call,
        config=kernel.best_config,
        time_ms=float(times_ms[0]),
        measured=len(timings),
    )


def allocate_argument(argument: Any, device: Any) -> Any:
    """Allocate an argument: random floats, zeros for integers."""
    import torch

    if isinstance(argument, tuple):
        return tuple(allocate_argument(part, device) for part in argument)
    if is_descriptor(argument):
        argument.base = allocate_argument(argument.base, device)
        return argument
    if not isinstance(argument, Tensor):
        return argument

    # The memory reaches from an aligned address to the last element; the offset keeps the alignment
    # of the recorded address.
    dtype = getattr(torch, argument.element)
    last_element = 0
    for size, stride in zip(argument.shape, argument.strides, strict=True):
        last_element += (size - 1) * stride
    offset = argument.address // dtype.itemsize
    memory = torch.zeros(max(offset + last_element + 1, 1), dtype=dtype, device=device)
    if dtype.is_floating_point:
        memory.copy_(torch.randn(len(memory), device=device))
    return memory.as_strided(argument.shape, argument.strides, offset)


def _load_decorated(reference: str) -> Autotuner:
    """Return the tuner of a kernel, below other decorators."""
    kernel = object_at(reference)
    while not isinstance(kernel, Autotuner) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    if not isinstance(kernel, Autotuner):
        raise UsageError(
            f"{reference} is not decorated with foretune.autotune: nothing to choose. If a library "
            "decorates it with triton.autotune, set FORETUNE_TRITON=4"
        )
    return kernel
