"""Tunes recorded calls ahead of use."""

import dataclasses
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
        if store not in (None, kernel.options.store):
            kernel.options = dataclasses.replace(kernel.options, store=store)
            kernel.tuner_factory = CallTunerFactory(kernel.options)
        args = [allocate_argument(a, device) for a in call.args]
        kwargs = {n: allocate_argument(a, device) for n, a in call.kwargs.items()}
        knobs = list(kernel.configs[0].kwargs)

        def grid(meta: Mapping[str, Any], call: RecordedCall = call, of: Any = knobs) -> Any:
            return call.programs({name: meta[name] for name in of})

        kernel.configs_timings = {}
        kernel[grid](*args, **kwargs)
        timings = kernel.configs_timings
        taken = np.ravel(timings.get(kernel.best_config, float("nan")))  # also of one number
        yield WarmedCall(call, kernel.best_config, float(taken[0]), len(timings))


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
    dtype = getattr(torch, argument.element)
    reach = sum((n - 1) * s for n, s in zip(argument.shape, argument.strides, strict=True))
    offset = argument.address // dtype.itemsize
    memory = torch.zeros(max(offset + reach + 1, 1), dtype=dtype, device=device)
    if dtype.is_floating_point:
        memory.copy_(torch.randn(len(memory), device=device))
    return memory.as_strided(argument.shape, argument.strides, offset)


def _load_decorated(reference: str) -> Autotuner:
    found = object_at(reference)
    while not isinstance(found, Autotuner) and hasattr(found, "fn"):
        found = found.fn
    if not isinstance(found, Autotuner):
        raise UsageError(f"{reference} is not decorated with foretune.autotune: nothing to choose")
    return found
