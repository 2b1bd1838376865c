"""One side of `libraries.py`, in a separate process: tuning by stock Triton or by Foretune."""

import argparse
import contextlib
import json
import math
import sys
import time
import traceback
import warnings
from typing import Any

import torch
from library_calls import Inputs
from library_cases import Case
from library_modules import find_tuner, load, load_patched, packages, replayed
from library_rows import Log, key_of, read

SAMPLED = 1 << 18
"""Elements of each result that are compared, evenly spaced."""
BARS = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""Largest relative error (2-norm) between results of two configurations that counts as equal."""
BROKEN = 3
"""Exit status of a process whose device no longer answers."""


def side(options: argparse.Namespace) -> None:
    """Make the calls of one side."""
    note = Log(options)
    with replayed() if options.compile_only else contextlib.nullcontext():
        importing = load_patched if options.side == "foretune" else load
        modules = importing(options.libraries, options.kernels, note)
        if not sys.stdin.readline():
            return
        if not options.compile_only:
            from foretune.collect.versions import versions

            note(device=torch.cuda.get_device_name(), versions=f"{versions()}, {packages()}")
        known = stock_rows(options) if options.side == "foretune" else None
        done = {key_of(row) for row in note.written() if "problem" in row}
        for case, module in modules:
            for index, problem in enumerate(case.problems):
                key = (case.kernel, json.dumps(problem))
                if key in done or (known is not None and key not in known):
                    continue
                if time.time() > options.until and not options.compile_only:
                    return
                note.begin(library=case.library, kernel=case.kernel, problem=problem)
                try:
                    stock = known[key] if known is not None else None
                    note.end(**measure(case, module, index, options, stock))
                except Exception as error:
                    traceback.print_exc()
                    note.end(error=f"{type(error).__name__}: {error}")
                    if not answers(options):
                        sys.exit(BROKEN)


def stock_rows(options: argparse.Namespace) -> dict[Any, dict[str, Any]]:
    """Return what stock's process measured, by kernel and problem."""
    rows = read(options.work / "stock.jsonl")
    return {key_of(row): row for row in rows if "times" in row}


def measure(
    case: Case,
    module: Any,
    index: int,
    options: argparse.Namespace,
    stock: dict[str, Any] | None,
) -> dict[str, Any]:
    """Make a call for the first time; return what the tuner did."""
    call = case.prepare(module, case.problems[index], Inputs(replayed=options.compile_only))
    tuner = find_tuner(getattr(module, case.kernel))
    tuner.configs_timings = {}
    synchronize(options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begin = time.perf_counter()
        outputs = call()
        synchronize(options)
        seconds = time.perf_counter() - begin
    chosen = name_of(tuner.best_config)
    times = {name_of(c): first(t) for c, t in (tuner.configs_timings or {}).items()}
    row: dict[str, Any] = {
        "index": index,
        "listed": len(tuner.configs),
        "measured": len(times),
        "chosen": chosen,
        "seconds": round(seconds, 4),
        "times": times,
        "tuner": f"{type(tuner).__module__}.{type(tuner).__name__}",
    }
    said = [str(w.message) for w in caught if "oretune" in w.category.__name__]
    if said:
        row["note"] = "; ".join(said)
    sample = [sampled(o) for o in outputs]
    path = options.work / f"{case.kernel}-{index}.pt"
    if options.side == "stock":
        torch.save(sample, path)
        return row
    from foretune.tune.triton.autotuner import Autotuner

    row["reached"] = isinstance(tuner, Autotuner)
    assert stock is not None
    ran = [t for t in stock["times"].values() if t is not None]
    mine = stock["times"].get(chosen)
    row["share"] = min(ran) / mine if ran and mine else None
    row |= {"stock_seconds": stock["seconds"], "configs": len(stock["times"])}
    if not options.compile_only:
        errors = [compared(*pair) for pair in zip(sample, torch.load(path), strict=True)]
        row["error_2norm"] = [e for e, _ in errors]
        row["equal"] = all(equal for _, equal in errors)
    return row


def name_of(config: Any) -> str:
    """Return a configuration as text, the same in both processes."""
    values = {n: v for n, v in config.all_kwargs().items() if v is not None}
    return json.dumps(values, sort_keys=True, default=str)


def first(timing: Any) -> float | None:
    """Return the median of a timing; None where the configuration failed."""
    value = float(timing[0] if isinstance(timing, (list, tuple)) else timing)
    return value if math.isfinite(value) else None


def sampled(output: torch.Tensor) -> torch.Tensor:
    """Return some elements of a result, on the host, in its own type."""
    flat = output.detach().flatten()
    return flat[:: max(1, len(flat) // SAMPLED)].cpu()


def compared(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[float | None, bool]:
    """Return the relative error between two results, and whether they count as equal."""
    a = ours.double()
    b = theirs.double()
    error = float((a - b).norm() / b.norm().clamp_min(1e-30))
    if not math.isfinite(error):
        return None, False
    return error, error <= BARS.get(ours.dtype, 0.0)


def synchronize(options: argparse.Namespace) -> None:
    """Wait for the device, if there is one."""
    if not options.compile_only:
        torch.cuda.synchronize()


def answers(options: argparse.Namespace) -> bool:
    """Return whether the device still works."""
    try:
        synchronize(options)
    except Exception:
        return False
    return True
