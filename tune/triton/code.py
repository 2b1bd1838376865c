"""What the code of candidates shows before they run: a glance at many, a look at the compiled few.

The first stages of the compiler take a tenth of a second whatever the tile; they tell how much a
kernel computes per byte, and whether it fits. Machine code tells registers, spills and occupancy.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import triton

from foretune.collect.compiled import get_target
from foretune.device import Device
from foretune.errors import UnknownName
from foretune.tune.triton.descriptors import arguments_after_hook
from foretune.tune.triton.runtime import is_interpreted

MAX_EARLY_COMPILES = 20
"""Candidates of a kernel whose first stages are looked at."""


class CodeReader:
    """Reads the code of one call's candidates.

    Args:
        fn: the kernel below the tuner.
        args: of the call.
        kwargs: of the call; what is no argument of the kernel is ignored.
        device: what is compiled for.
    """

    def __init__(
        self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], device: Device
    ) -> None:
        self._fn, self._args = fn, args
        self._kwargs = {n: v for n, v in kwargs.items() if n in fn.arg_names}
        try:
            self._target = None if is_interpreted() else get_target(device.architecture)
        except UnknownName:
            self._target = None

    def early_stage_features(
        self, configs: Sequence[triton.Config], threads: int
    ) -> list[dict[str, float]]:
        """Return what the first stages show of each; nothing of those that do not compile."""
        with ThreadPoolExecutor(threads, "foretune-glance") as pool:
            return list(pool.map(self._early_stage_features, configs))

    def machine_code_features(self, compiled: Any) -> dict[str, float]:
        """Return what machine code shows; nothing where it cannot be read."""
        from foretune.collect.compiled.static_features import static_features

        try:
            return static_features(compiled, self._target) if self._target else {}
        except Exception:  # another release's formats: a hint less
            return {}

    def _early_stage_features(self, config: triton.Config) -> dict[str, float]:
        from foretune.collect.compiled.compiling import compile_ttgir, specialize
        from foretune.collect.compiled.static_features import ttgir_features

        if self._target is None:
            return {}
        try:
            knobs = config.all_kwargs()
            args, kwargs = arguments_after_hook(
                config, self._fn.arg_names, self._args, self._kwargs
            )
            special = specialize(self._fn, args, kwargs, knobs, self._target)
            return ttgir_features(compile_ttgir(special), special)
        except Exception:  # the launch will say why, if it comes to that
            return {}
