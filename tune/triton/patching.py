"""Replaces `triton.autotune` for libraries that use it."""

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import CodeType
from typing import Any

from foretune.errors import warn
from foretune.support.lazy import require
from foretune.tune.triton.decorator import autotune, is_disabled
from foretune.tune.triton.options import Options

KEPT = 4
"""Number of configurations that torch sees, besides the default, if the budget is not a number."""


def patch_triton(**options: Any) -> "Patch":
    """Replace `triton.autotune` by `foretune.autotune` for kernels decorated from now on.

    ``options`` are those of `foretune.tune.triton.Options`, for all of these kernels.

    Call it before importing the modules with the kernels. Classes that libraries derive from
    Triton's autotuner then derive from ours. It warns (`ForetuneWarning`) about classes that it
    cannot reach: they were derived before, or their `run` does not call ``super()``. Returns a
    patch; call it to undo the replacement. Raises MissingExtra if Triton is not installed.
    """
    require("triton", "gpu", "patching Triton")
    return Patch(options)


class Patch:
    """A patched Triton; call it to undo the patch. ``unreached`` maps class names to reasons."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        import triton
        import triton.runtime
        import triton.runtime.autotuner

        from foretune.tune.triton.autotuner import Autotuner

        self.unreached: dict[str, str] = {}
        self._patched_modules = (triton, triton.runtime, triton.runtime.autotuner)
        self._before = triton.runtime.autotuner.autotune
        self._ours = Autotuner
        self._stock = triton.runtime.autotuner.Autotuner
        self._options_before = Autotuner.default_options
        Autotuner.default_options = Options(**options)
        for module in self._patched_modules:
            module.autotune = partial(autotune, **options) if options else autotune
        for kind in self._stock.__subclasses__():
            if kind is not Autotuner:
                self._warn_unreached(kind, "was derived from Triton's autotuner before the patch")
        self._stock.__init_subclass__ = classmethod(lambda kind: self._rebase(kind))
        self._undo_tracing = _patch_tracing()

    def __call__(self) -> None:
        """Undo the patch; classes derived meanwhile keep our base class."""
        for module in self._patched_modules:
            module.autotune = self._before
        self._undo_tracing()
        self._ours.default_options = self._options_before
        if "__init_subclass__" in vars(self._stock):
            del self._stock.__init_subclass__

    def _rebase(self, kind: Any) -> None:
        """Replace Triton's autotuner by ours among the bases of a new class."""
        if self._stock not in kind.__bases__ or is_disabled():
            return
        run = vars(kind).get("run")
        if run is not None and not _calls_super(getattr(run, "__code__", None)):
            self._warn_unreached(kind, "runs kernels by itself")
            return
        kind.__bases__ = tuple(self._ours if b is self._stock else b for b in kind.__bases__)

    def _warn_unreached(self, kind: type, why: str) -> None:
        name = f"{kind.__module__}.{kind.__qualname__}"
        self.unreached[name] = why
        warn(f"kernels of {name} are tuned by Triton: it {why}", stacklevel=4)


def _calls_super(code: Any) -> bool:
    """Whether the code of a method, or of a function within it, calls ``super()``."""
    return isinstance(code, CodeType) and (
        "super" in code.co_names or any(map(_calls_super, code.co_consts))
    )


def _patch_tracing() -> Callable[[], None]:
    """Shorten the lists that torch sees, if its method exists; return an undo function."""
    try:
        from torch._higher_order_ops import triton_kernel_wrap

        tracer: Any = triton_kernel_wrap.TritonHOPifier
        real = tracer.call_triton_kernel
    except (ImportError, AttributeError):  # no torch, or an older one: it sees all configurations
        return lambda: None

    def call(self: Any, variable: Any, args: Any, kwargs: Any, tx: Any) -> Any:
        with suppress(Exception):  # else torch times them all
            variable = _with_few(self, variable, args, kwargs)
        return real(self, variable, args, kwargs, tx)

    tracer.call_triton_kernel = call

    def undo() -> None:
        tracer.call_triton_kernel = real

    return undo


def _with_few(tracer: Any, variable: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return torch's variable of the kernel; if the kernel is ours, with fewer configurations."""
    from foretune.tune.triton.autotuner import Autotuner

    kernel = variable.kernel
    if not isinstance(kernel, Autotuner) or kernel.options.measures_all:
        return variable
    if kernel.perf_model is not None or kernel.early_config_prune is not None:
        return variable  # torch prunes first, then calls again
    count = kernel.options.max_measurements(KEPT)
    if len(kernel.configs) <= count + 1:
        return variable

    # Keep the default and the most promising ones, in the order of the list.
    arguments = [_value(argument) for argument in args]
    named_arguments = {name: _value(argument) for name, argument in kwargs.items()}
    ranked = kernel.rank(*arguments, **named_arguments)
    kept = {kernel.configs[0], *(entry.config for entry in ranked[:count])}
    shortened = copy.copy(kernel)
    shortened.configs = [config for config in kernel.configs if config in kept]
    return tracer.recreate_variable(variable, kernel=shortened, kernel_idx=None, grid=variable.grid)


def _value(traced: Any) -> Any:
    """Return an argument's value as in a launch; dynamic sizes are those of the example."""
    from foretune.collect.compiled.arguments import Tensor

    value = traced.as_proxy() if hasattr(traced, "as_proxy") else traced
    value = getattr(value, "node", value)
    value = value.meta["example_value"] if hasattr(value, "meta") else value
    if hasattr(value, "stride"):
        shape = tuple(map(_number, value.shape))
        strides = tuple(map(_number, value.stride()))
        return Tensor(str(value.dtype).removeprefix("torch."), shape, strides)
    return _number(value)


def _number(value: Any) -> Any:
    """Return a number; of a dynamic size that of the example."""
    node = getattr(value, "node", None)
    return node.hint if node is not None else value
