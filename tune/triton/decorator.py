"""The `autotune` decorator."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from foretune.errors import UsageError
from foretune.objective import Objective
from foretune.space import SearchSpace
from foretune.support.lazy import require
from foretune.tune.triton.options import Budget, Mode, Options

if TYPE_CHECKING:
    import triton

    from foretune.models.saved.lookup import PredictorSource
    from foretune.tune.store.fallible import StoreLocation
    from foretune.tune.triton.output_check import Reference

DISABLE_VARIABLE = "FORETUNE_DISABLE"


def autotune(
    configs: "Sequence[triton.Config] | SearchSpace",
    key: Sequence[str],
    prune_configs_by: dict[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,
    rep: int | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
    *,
    budget: Budget = "auto",
    seconds: float | None = None,
    mode: Mode = "stall",
    objective: Objective | str = Objective.TIME,
    regret: float = 0.03,
    predictor: "PredictorSource" = "auto",
    store: "StoreLocation" = None,
    shipped: str | os.PathLike[str] | None = None,
    check: float | None = None,
    reference: "Reference | None" = None,
    compile_limit_s: float = 60.0,
    buckets: Mapping[str, Sequence[int]] | None = None,
    strict: bool = False,
    include_default: bool = False,
) -> Callable[[Any], Any]:
    """Tune a ``@triton.jit`` kernel by measuring only its most promising configurations.

    The arguments up to ``cache_results`` are those of `triton.autotune`; the others are
    Foretune's, see `foretune.tune.triton.Options`. If ``configs`` is a `SearchSpace`, its
    parameters ``num_warps``, ``num_stages``, ``num_ctas`` and ``maxnreg`` are compiler options.
    With ``FORETUNE_DISABLE=1`` in the environment, stock Triton tunes the kernel.

    Raises:
        UsageError: an option is invalid, or ``configs`` does not fit the kernel.
        ValueError: ``key`` or another list has a name that is not an argument of the kernel.
        MissingExtra: Triton is not installed.
    """
    given = locals()
    options = Options(**{field.name: given[field.name] for field in fields(Options)})
    if unknown := [name for name in buckets or () if name not in key]:
        raise UsageError(f"buckets name {unknown[0]!r}, which is not in key")
    stock: tuple[Any, ...] = (
        key,
        reset_to_zero,
        restore_value,
        pre_hook,
        post_hook,
        prune_configs_by,
        warmup,
        rep,
        use_cuda_graph,
        do_bench,
        cache_results,
    )
    return partial(_decorate, configs, stock, options)


def _decorate(configs: Any, stock: tuple[Any, ...], options: Options, fn: Any) -> Any:
    require("triton", "gpu", "tuning a Triton kernel")
    from foretune.tune.triton.autotuner import Autotuner, StockAutotuner
    from foretune.tune.triton.kernel import to_triton_configs

    if not hasattr(fn, "arg_names"):
        name = getattr(fn, "__name__", fn)
        raise UsageError(f"{name} is not a Triton kernel: put @triton.jit below @autotune")
    listed = to_triton_configs(configs, fn.arg_names)
    kind = StockAutotuner if is_disabled() else Autotuner
    return kind(fn, fn.arg_names, listed, *stock, options=options)


def is_disabled() -> bool:
    """Whether the environment asks for stock Triton (``FORETUNE_DISABLE=1``)."""
    return os.environ.get(DISABLE_VARIABLE, "") not in ("", "0")
