"""The `autotune` decorator."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from foretune.errors import UsageError
from foretune.lazy import require
from foretune.objective import Objective
from foretune.space import SearchSpace
from foretune.tune.triton.options import Budget, Mode, Options

if TYPE_CHECKING:
    import triton

    from foretune.models.saved.lookup import PredictorSource
    from foretune.tune.store import Store
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
    store: "Store | str | os.PathLike[str] | bool | None" = None,
    shipped: str | os.PathLike[str] | None = None,
    check: float | None = None,
    reference: "Reference | None" = None,
    compile_limit_s: float = 60.0,
    buckets: Mapping[str, Sequence[int]] | None = None,
    strict: bool = False,
) -> Callable[[Any], Any]:
    """Tune a ``@triton.jit`` kernel by measuring only its most promising configurations.

    The arguments up to ``cache_results`` are those of `triton.autotune`; the others are
    Foretune's. If ``configs`` is a `SearchSpace`, its parameters ``num_warps``, ``num_stages``,
    ``num_ctas`` and ``maxnreg`` are compiler options. With ``FORETUNE_DISABLE=1`` in the
    environment, stock Triton tunes the kernel.

    Args:
        configs: the candidates.
        key: names of arguments whose values make a new problem.
        prune_configs_by: ``early_config_prune``, ``perf_model`` and ``top_k``.
        reset_to_zero: names of arguments that are zeroed before every measured launch.
        restore_value: names of arguments that are restored after every measured launch.
        pre_hook: called before every measured launch.
        post_hook: called after it.
        warmup: milliseconds; as in Triton, deprecated.
        rep: milliseconds; as in Triton, deprecated.
        use_cuda_graph: as in Triton, deprecated.
        do_bench: measures a launch; the driver's own by default.
        cache_results: keep Triton's own file of timings as well.
        budget: measurements per new problem. A number is exceeded only until the first
            configuration runs; 0 only predicts. ``"all"`` measures every configuration, as stock
            Triton does. ``"auto"`` measures until the expected regret is below ``regret``.
        seconds: wall time of compiling and measuring for a new problem, after which no measurement
            is started; None for no limit. What one process measured in this time is enough for all.
        mode: ``"stall"`` measures before the first call of a new problem returns. ``"graph"`` does
            too, but measures replays of a CUDA graph: back to back, with a warm cache, without the
            host. ``"online"`` measures real calls, one configuration per call. Choices are stored
            per mode.
        objective: the quantity to minimize; energy needs a power meter.
        regret: expected regret below which measuring stops, e.g. 0.03 for 3 %.
        predictor: a trained predictor of this kernel, any model, or a name
            (`foretune.models.saved.lookup`); an error if it cannot be used. ``"auto"`` takes the
            one shipped with Foretune, if any, and logs which. None uses no predictor.
        store: path of the tuning store, or a URL; None for the user's own, False for none.
        shipped: a file of tuned results that came with a library (``foretune store --export``).
        check: maximum relative error of the output; None does not compare. The output is compared
            with the first configuration's, unless two others agree with each other but not with it.
        reference: compare with this function's result instead (`foretune.tune.triton.output_check.
            Reference`): it takes the kernel's arguments by name and returns a dictionary from names
            of arguments to the tensors expected there. Needs ``check``.
        compile_limit_s: time limit for compiling one configuration, seconds.
        buckets: key argument -> ascending upper bounds. A value counts as the smallest bound that
            is not below it; a value above all bounds counts as itself.
        strict: use recorded choices only, so that every run of a program uses the same ones; a
            call without one is an error.

    Raises:
        UsageError: an option is invalid, or ``configs`` does not fit the kernel.
        ValueError: ``key`` or another list names no argument of the kernel.
        MissingExtra: Triton is not installed.
    """
    given = locals()
    options = Options(**{field.name: given[field.name] for field in fields(Options)})
    if unknown := [name for name in buckets or () if name not in key]:
        raise UsageError(f"buckets name {unknown[0]!r}, which is not in key")

    def decorate(fn: Any) -> Any:
        require("triton", "gpu", "tuning a Triton kernel")
        from foretune.tune.triton.kernel import to_triton_configs

        if not hasattr(fn, "arg_names"):
            name = getattr(fn, "__name__", fn)
            raise UsageError(f"{name} is no Triton kernel: put @triton.jit below @autotune")
        listed = to_triton_configs(configs, fn.arg_names)
        stock: tuple[Any, ...] = (
            fn, fn.arg_names, listed, key, reset_to_zero, restore_value, pre_hook, post_hook,
            prune_configs_by, warmup, rep, use_cuda_graph, do_bench, cache_results,
        )  # fmt: skip
        from foretune.tune.triton.autotuner import Autotuner, StockAutotuner

        return (StockAutotuner if is_disabled() else Autotuner)(*stock, options=options)

    return decorate


def is_disabled() -> bool:
    """Whether the environment asks for stock Triton (``FORETUNE_DISABLE=1``)."""
    return os.environ.get(DISABLE_VARIABLE, "") not in ("", "0")
