"""Items of `smoke.py`: what tuning chooses, with the decorator and in its modes."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
from smoke_calls import Call, Case
from smoke_cases import CASES, QUICK, TMA_CASE
from smoke_rows import REAL, Run, rows_of

import foretune


def tuned_once(run: Run, case: Case) -> tuple[Call, Any, list[triton.Config], float, float]:
    """Return call, tuner, what it measured, and the seconds and the error of the first launch."""
    call, tuner, measured = case.tuned(store=run.store("tuned"))
    start = time.monotonic()
    call.launch(tuner)
    return call, tuner, measured, time.monotonic() - start, call.error()


def decorator(run: Run) -> None:
    """Tune with the decorator and with stock Triton; both must compute what torch does."""
    for name, case in CASES.items():
        with run.checking(name):
            call, tuner, measured, seconds, error = tuned_once(run, case)
            stock = case.decorated(triton.autotune, **QUICK)
            call.spoil()
            call.launch(stock)
            stock_error = call.error()
            times = {c: float(t[0]) for c, t in stock.configs_timings.items()}
            kept = min(times.values()) / times[tuner.best_config]
            run.check(
                name,
                max(error, stock_error) <= call.limit and kept > 0,
                f"{len(measured)} of {len(case.configs)} measured in {seconds:.2f} s, keeps "
                f"{kept:.3f} of stock's best {min(times.values()):.4f} ms; error {error:.2g}, "
                f"stock's {stock_error:.2g} (bar {call.limit:.2g})",
                chosen=str(tuner.best_config),
            )


def decorator_again(run: Run) -> None:
    """Find in the store what another process has chosen."""
    chosen = {row["what"]: row.get("chosen") for row in rows_of(run.out, "2")}
    for name, case in CASES.items():
        with run.checking(name):
            call, tuner, measured, seconds, error = tuned_once(run, case)
            same = chosen.get(name) == str(tuner.best_config)
            run.check(
                name,
                not measured and same and error <= call.limit,
                f"{len(measured)} measured, {'the same' if same else 'another'} choice, "
                f"{seconds:.2f} s, error {error:.2g}",
            )


def descriptors(run: Run) -> None:
    """Tune a kernel whose descriptors get their block shapes from a hook of the configuration."""
    with run.checking("gemm_tma"):
        check = 1e-2 if REAL else None  # there is nothing to compare
        _, tuner, measured = TMA_CASE.tuned(store=run.store("tma"))
        _, checked, with_check = TMA_CASE.tuned(store=False, check=check, budget=3)
        stock = TMA_CASE.decorated(triton.autotune, **QUICK)
        found = {}
        for name, one in (
            ("tuned", tuner),
            ("again", tuner),
            ("checked", checked),
            ("stock", stock),
        ):
            call = TMA_CASE.make()  # with descriptors that no hook has seen
            call.launch(one)
            found[name] = call.error()
        errors = ", ".join(f"{name} {error:.2g}" for name, error in found.items())
        run.check(
            "gemm_tma",
            max(found.values()) <= call.limit and bool(measured),
            f"errors: {errors} (bar {call.limit:.2g}); {len(measured)} of "
            f"{len(TMA_CASE.configs)} measured, {len(with_check)} with check",
        )


MOST_OF_OUTPUT = 3.0


def check_memory(run: Run) -> None:
    """Compare the most memory that tuning takes with and without a check of outputs."""
    with run.checking("memory"):
        peaks = []
        errors = []
        for check in (None, 1e-2) if REAL else (None, None):
            bench = _events_bench if REAL else None
            call, tuner, _ = CASES["gemm"].tuned(store=False, check=check, budget=3, do_bench=bench)
            before = 0
            if REAL:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            call.spoil()
            call.launch(tuner)
            peaks.append(torch.cuda.max_memory_allocated() - before if REAL else 0)
            errors.append(call.error())
        size = call.output.numel() * call.output.element_size()
        multiple = (peaks[1] - peaks[0]) / size
        run.check(
            "memory",
            multiple <= MOST_OF_OUTPUT and max(errors) <= call.limit,
            f"check takes {multiple:.2f} times the output of {size / 2**20:.0f} MiB more; "
            f"{peaks[0] / 2**20:.1f} MiB without",
        )


def _events_bench(call: Callable[[], Any], quantiles: Any) -> list[float]:
    """Time ten calls without the buffer that Triton's own benchmarker allocates."""
    times = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return [sorted(times)[round(q * 9)] for q in quantiles]


MOST_CALLS = 3000
MOST_ONLINE_S = 10.0


def modes(run: Run) -> None:
    """Tune softmax from replays of graphs, from real calls, and for energy."""
    options: dict[str, dict[str, Any]] = {
        "graph": {"mode": "graph"},
        "online": {"mode": "online"},
        "energy": {"objective": "energy", "budget": 3},
    }
    for name, given in options.items():
        if not REAL and name != "online":  # graphs and meters are not there
            continue
        with run.checking(name):
            call, tuner, _ = CASES["softmax"].tuned(store=run.store(f"mode-{name}"), **given)
            start = time.monotonic()
            calls = 0
            errors = []
            while calls < MOST_CALLS and time.monotonic() - start < MOST_ONLINE_S:
                call.launch(tuner)
                calls += 1
                if calls in (1, 5, 20):
                    errors.append(call.error())
                    call.spoil()
                if tuner.cache:
                    break
                time.sleep(0.002)
            call.launch(tuner)
            errors.append(call.error())
            store = foretune.Store(run.store(f"mode-{name}"))
            watts = [m.power_w for s in store.subjects() for m in store.measurements(s)]
            metered = name != "energy" or not any(map(math.isnan, watts))
            run.check(
                name,
                bool(tuner.cache) and max(errors) <= call.limit and metered,
                f"{'chosen' if tuner.cache else 'NOT CHOSEN'} after {calls} calls, "
                f"{time.monotonic() - start:.2f} s, {len(tuner.configs_timings)} measured: "
                f"{tuner.best_config}; error {max(errors):.2g}; "
                f"watts {', '.join(f'{w:.0f}' for w in watts) if name == 'energy' else '–'}",
            )
