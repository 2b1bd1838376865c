"""Replaces `triton.autotune` for libraries that use it."""

import warnings
from types import CodeType
from typing import Any

from foretune.errors import ForetuneWarning
from foretune.lazy import require
from foretune.tune.triton.decorator import autotune, is_disabled


def patch_triton() -> "Patch":
    """Replace `triton.autotune` by `foretune.autotune` for kernels decorated from now on.

    Call it before importing the modules with the kernels. Classes that libraries derive from
    Triton's autotuner then derive from ours. It warns (`ForetuneWarning`) about classes that it
    cannot reach: they were derived before, or have a `run` without ``super()``.

    Returns:
        a patch; call it to undo the change.

    Raises:
        MissingExtra: Triton is not installed.
    """
    require("triton", "gpu", "patching Triton")
    return Patch()


class Patch:
    """A patched Triton; call it to undo the patch. ``unreached`` maps class names to reasons."""

    def __init__(self) -> None:
        import triton
        import triton.runtime
        import triton.runtime.autotuner

        from foretune.tune.triton.autotuner import Autotuner
        from foretune.tune.triton.traced import patch_tracing

        self.unreached: dict[str, str] = {}
        self._patched_modules = (triton, triton.runtime, triton.runtime.autotuner)
        self._before = triton.runtime.autotuner.autotune
        self._ours, self._stock = Autotuner, triton.runtime.autotuner.Autotuner
        for module in self._patched_modules:
            module.autotune = autotune
        for kind in self._stock.__subclasses__():
            if kind is not Autotuner:
                self._warn_unreached(
                    kind, "was derived from Triton's autotuner before it was patched"
                )
        self._stock.__init_subclass__ = classmethod(lambda kind: self._rebase(kind))
        self._undo_tracing = patch_tracing()

    def __call__(self) -> None:
        """Undo the patch; classes derived meanwhile keep our base class."""
        for module in self._patched_modules:
            module.autotune = self._before
        self._undo_tracing()
        if "__init_subclass__" in vars(self._stock):
            del self._stock.__init_subclass__

    def _rebase(self, kind: Any) -> None:
        """Replace Triton's autotuner by ours among the bases of a new class."""
        if self._stock not in kind.__bases__ or is_disabled():
            return
        run = vars(kind).get("run")
        if run is not None and not _calls_super(run):
            self._warn_unreached(kind, "runs kernels by itself")
            return
        kind.__bases__ = tuple(self._ours if b is self._stock else b for b in kind.__bases__)

    def _warn_unreached(self, kind: type, why: str) -> None:
        name = f"{kind.__module__}.{kind.__qualname__}"
        self.unreached[name] = why
        warnings.warn(
            f"kernels of {name} are tuned by Triton: it {why}", ForetuneWarning, stacklevel=4
        )


def _calls_super(run: Any) -> bool:
    """Whether a method, or a function within it, calls ``super()``."""
    left = [getattr(run, "__code__", None)]
    while left:
        code = left.pop()
        if isinstance(code, CodeType):
            if "super" in code.co_names:
                return True
            left += code.co_consts
    return False
