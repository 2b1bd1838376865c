"""Shortens the lists that torch.compile finds in a program with decorated kernels.

torch reads ``configs`` and times them all. Where it turns a call into a node of its graph, the call
gets a copy of the kernel with its default and the most promising configurations.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from foretune.collect.compiled.arguments import Tensor
from foretune.tune.triton.autotuner import Autotuner

KEPT = 4
"""Number of configurations that are left where the budget is no number, besides the default."""


def patch_tracing() -> Callable[[], None]:
    """Shorten the lists that torch sees, where torch has the method that is replaced; undo it."""
    try:
        from torch._higher_order_ops import triton_kernel_wrap

        tracer: Any = triton_kernel_wrap.TritonHOPifier
        real = tracer.call_triton_kernel
    except (ImportError, AttributeError):  # no torch, or an older one: it sees all configurations
        return lambda: None

    def call(self: Any, variable: Any, args: Any, kwargs: Any, tx: Any) -> Any:
        try:
            variable = _with_few(self, variable, args, kwargs)
        except Exception:  # torch times them all
            return real(self, variable, args, kwargs, tx)
        return real(self, variable, args, kwargs, tx)

    tracer.call_triton_kernel = call

    def undo() -> None:
        tracer.call_triton_kernel = real

    return undo


def _with_few(tracer: Any, variable: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return torch's variable of the kernel, with fewer configurations where it is one of ours."""
    kernel = variable.kernel
    if not isinstance(kernel, Autotuner) or kernel.options.budget == "all":
        return variable
    if kernel.perf_model is not None or kernel.early_config_prune is not None:
        return variable  # torch prunes first, then calls again
    count = kernel.options.max_measurements(KEPT) if kernel.options.budget != "auto" else KEPT
    if len(kernel.configs) <= count + 1:
        return variable
    ranked = kernel.rank(*map(_value, args), **{n: _value(v) for n, v in kwargs.items()})
    kept = {kernel.configs[0], *(r.config for r in ranked[:count])}
    few = copy.copy(kernel)
    few.configs = [config for config in kernel.configs if config in kept]
    return tracer.recreate_variable(variable, kernel=few, kernel_idx=None, grid=variable.grid)


def _value(traced: Any) -> Any:
    """Return an argument as a launch has it; dynamic sizes are those of the example."""
    value = traced.as_proxy() if hasattr(traced, "as_proxy") else traced
    value = getattr(value, "node", value)
    value = value.meta["example_value"] if hasattr(value, "meta") else value
    if hasattr(value, "stride"):
        shape, strides = (tuple(map(_number, x)) for x in (value.shape, value.stride()))
        return Tensor(str(value.dtype).removeprefix("torch."), shape, strides)
    return _number(value)


def _number(value: Any) -> Any:
    node = getattr(value, "node", None)
    return node.hint if node is not None else value
