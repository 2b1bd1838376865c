"""Item of `tools.py`: Helion tunes a product by Foretune's search.

Without a GPU, Pallas interprets the kernel: nothing follows from its times.
"""

import importlib.util
import math
import os
import statistics
from typing import Any

import torch
from smoke_rows import REAL, Run, warm_gpu_timer

from foretune.errors import describe_error

BUDGET = 12 if REAL else 4
SIDE = 1024 if REAL else 64
SECONDS = 30
"""What Helion may take for its search."""
ERROR_LIMIT = 5e-3 if REAL else 1e-5
"""Allowed relative error of the result in half or single precision, in the 2-norm."""
SAMPLES = 20
NOISE = 0.05
"""By how much the choice may be slower than the default when both are timed again."""


def helion(run: Run) -> None:
    """Tune a product, and compare its time with that of Helion's default."""
    if importlib.util.find_spec("helion") is None:
        run.leave_out("Helion", "not installed")
        return
    if not REAL:
        if importlib.util.find_spec("jax") is None:
            run.leave_out("jax", "not installed: without a GPU, its Pallas interprets the kernel")
            return
        os.environ |= {"HELION_BACKEND": "pallas", "HELION_PALLAS_INTERPRET": "1"}
    os.environ["HELION_SKIP_CACHE"] = "1"
    try:
        import helion as tool
        from helion.autotuner.base_search import BaseSearch
        from helion_product import product
    except Exception as e:
        run.leave_out("Helion", f"it cannot be imported: {describe_error(e)[:200]}")
        return
    from foretune import helion_autotuner

    times: list[float] = []
    real = BaseSearch.benchmark_batch

    def counted(search: Any, configs: Any, **named: Any) -> Any:
        results = real(search, configs, **named)
        times.extend(result.perf for result in results)
        return results

    BaseSearch.benchmark_batch = counted
    dtype = torch.float16 if REAL else torch.float32
    x, y = torch.randn(2, SIDE, SIDE, device="cuda" if REAL else "cpu").to(dtype)
    tuned = tool.kernel(
        product,
        static_shapes=True,
        autotune_random_seed=0,
        autotune_budget_seconds=SECONDS,
        autotuner_fn=helion_autotuner(BUDGET),
    )
    found = tuned(x, y).double()
    wanted = x.double() @ y.double()
    error = float((found - wanted).norm() / wanted.norm())
    ran = sum(map(math.isfinite, times))
    run.check(
        "product",
        error <= ERROR_LIMIT and ran > 0 and len(times) <= BUDGET,
        f"error {error:.2g}; {len(times)} configurations measured, {ran} ran",
    )

    default_config = tuned.bind((x, y)).config_spec.default_config()
    default = tool.kernel(product, static_shapes=True, config=default_config)
    text = f"Helion's clock: default {times[0]:.4g} ms, best {min(times):.4g} ms"
    is_no_slower = math.isfinite(min(times))
    if REAL:
        timer = warm_gpu_timer()
        default_ms = _median_ms(timer, lambda: default(x, y))
        tuned_ms = _median_ms(timer, lambda: tuned(x, y))
        text += f"; afterwards default {default_ms:.4g} ms, chosen {tuned_ms:.4g} ms"
        is_no_slower = tuned_ms <= (1 + NOISE) * default_ms
    run.check("beside Helion's default", is_no_slower, text, times=times)


def _median_ms(timer: Any, launch: Any) -> float:
    launch()
    return statistics.median(timer.sample_ms(launch, 1) for _ in range(SAMPLES))
