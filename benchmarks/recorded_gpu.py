"""Lists of configurations timed on a GPU by this folder's commands, as calls of their kernels.

`recorded_tables.read` asks for three kinds of files: those of `gpu_autotune.py` (whole lists),
those of `gpu/libraries.py` (whole lists of other libraries' kernels, which must be installed), and
run tables of a GPU (whole lists of `gpu/breadth.py` and `gpu/live.py`; of shipped ones, parts of
spaces, and only products of tiles).
"""

import json
import math
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from gpu_cases import LAUNCH, Case, cases
from recorded_calls import Recorded, as_call

sys.path.append(str(Path(__file__).resolve().parent / "gpu"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "replay_gpu"))

from replay_driver import ReplayDriver

import foretune
from foretune.datasets import read_runs, to_measurements
from foretune.device import Device, find_device
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.search.encoding import KernelRuns
from foretune.space import Configuration
from foretune.tune.triton.prior import PriorFactory
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.tiles import tile_launches

DEVICE = "NVIDIA H100 80GB HBM3"
MIN_CONFIGURATIONS = 4
"""Smallest list of a problem of a run table: an order of fewer says little."""
MAX_TIME_MS = 1e30
"""Recordings write a larger time, or none, for a configuration that did not run."""
Times = Mapping[frozenset[tuple[str, Any]], float]


@cache
def read_lists(path: Path) -> list[Recorded]:
    """Return the lists of a file of `gpu_autotune.py` or `gpu/libraries.py`.

    A library's kernels are called once: afterwards their tuners know these problems.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    if any(row.get("library") for row in rows):
        return list(_of_libraries([r for r in rows if r.get("side") == "stock" and "times" in r]))
    return list(_of_cases([r for r in rows if r["tuner"] == "triton.autotune"]))


def read_table(path: Path) -> list[Recorded]:
    """Return the problems of a run table of Foretune's Triton kernels.

    Those of `gpu/breadth.py` and `gpu/live.py` (column ``case``) are whole lists, in their files as
    in a shipped table. Others are parts of spaces, and of these only products are returned.
    """
    import breadth
    import live_kernels

    live = {case.kernel.name: case.kernel for case in live_kernels.cases()}
    kernel_by_name = breadth.kernel_by_name() | live
    runs = read_runs(path)
    is_of_list = ~runs["role"].isin(["reference", "proposed"])
    runs = runs[(runs["counter.repeat"] == 0) & is_of_list]
    is_whole = runs["case"].notna() if "case" in runs else pd.Series(False, runs.index)
    by_problem = defaultdict[tuple[bool, str, Problem], list[Measurement]](list)
    for whole, m in zip(is_whole, to_measurements(runs), strict=True):
        by_problem[bool(whole), m.kernel, m.problem].append(m)

    found = []
    with ReplayDriver(lambda launch: 1.0, device=DEVICE).active():
        for (whole, name, problem), measurements in by_problem.items():
            device = find_device(measurements[0].device)
            recorded = recorded_list(kernel_by_name[name], problem, measurements, device)
            if recorded is None:
                continue
            is_row_list = whole and not recorded.is_product
            if is_row_list or is_of_tiles(recorded):
                found.append(recorded)
    return found


def is_of_tiles(recorded: Recorded) -> bool:
    """Whether Foretune recognizes a product of tiles."""
    return tile_launches(recorded.call, recorded.configs, recorded.law) is not None


def _of_cases(rows: Sequence[Mapping[str, Any]]) -> Iterator[Recorded]:
    case_by_kernel = cases(1)
    with ReplayDriver(lambda launch: 1.0, device=DEVICE).active():
        for row in rows:
            case = case_by_kernel[row["kernel"]]
            problem = case.kernel.problem(row["problem"])
            times = {_key(values): float(values["time_ms"]) for values in row["times"]}
            configs = [_config(values) for values in row["times"]]
            with _prior_calls() as calls:
                _call(replace(case, configs=configs), problem)
            yield _recorded(case.kernel.name, *calls[0], times)


def _call(case: Case, problem: Problem) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "tuned.db"
        tuner = case.decorated(foretune.autotune, store=store, budget=0)
        case.launch(tuner, problem, case.inputs(problem))()


def _of_libraries(rows: Sequence[Mapping[str, Any]]) -> Iterator[Recorded]:
    import library_calls
    import library_cases
    import library_modules

    store = str(Path(tempfile.mkdtemp()) / "tuned.db")  # a problem in the store needs no prior
    os.environ |= {"FORETUNE_STORE": store, "FLA_CACHE_RESULTS": "0", "GEMS_VENDOR": "nvidia"}
    foretune.patch_triton()
    with library_modules.replayed():
        say: Any = lambda **row: print(row, file=sys.stderr)  # noqa: E731
        modules = library_modules.load(library_cases.LIBRARIES, None, say)
        found = {case.kernel: (case, module) for case, module in modules}
        for row in rows:
            if row["kernel"] not in found:
                continue
            case, module = found[row["kernel"]]
            call = case.prepare(module, row["problem"], library_calls.Inputs(replayed=True))
            library_modules.find_tuner(getattr(module, case.kernel)).cache.clear()
            times = {
                _key(json.loads(name)): math.inf if time_ms is None else time_ms
                for name, time_ms in row["times"].items()
            }
            with _prior_calls() as calls:
                call()
            yield _recorded(case.kernel, *calls[0], times)


def recorded_list(
    kernel: Any, problem: Problem, measurements: Sequence[Measurement], device: Device
) -> Recorded | None:
    """Return a problem of a run table as a call; None if it has too few rows.

    A kernel that launches several times, to add up parts of split sums, is called as the first
    launch; the time is that of all.
    """
    # Programs that stay resident differ in more than their tile. So do those that split sums from
    # those that do not: where a problem has both, the whole sums are its list.
    rotating = [m for m in measurements if not m.config.get("PERSISTENT", False)]
    whole_sums = [m for m in rotating if m.config.get("SPLIT_K", 1) == 1]
    listed_measurements = whole_sums or rotating

    # A kernel may choose its function by the configuration: a list is of that of its first one.
    inputs = kernel.inputs_without_data(problem)
    launches: dict[Configuration, Any] = {}
    measured = []
    for m in listed_measurements:
        launch = kernel.launches(problem, m.config, inputs)[0][0]
        if not launches or launch.function is next(iter(launches.values())).function:
            launches[m.config] = launch
            measured.append(m)
    if len(launches) < MIN_CONFIGURATIONS or not any(m.ok for m in measured):
        return None

    # Launch options that differ between configurations are the list's parameters; the others are
    # arguments.
    first = next(iter(launches.values()))
    options = {name for launch in launches.values() for name in launch.options}
    values = {n: [launch.options.get(n) for launch in launches.values()] for n in options}
    varied = sorted(
        name
        for name, of_option in values.items()
        if all(type(value) is int for value in of_option)
        and (name in LAUNCH or len(set(of_option)) > 1)
    )
    plain = [parameter.name for parameter in first.function.params if not parameter.is_constexpr]
    arguments = dict(zip(plain, first.arguments, strict=True))
    sizes = [name for name, value in arguments.items() if type(value) is int]
    constants = [name for name in values if name not in (*varied, *LAUNCH)]
    arguments |= {name: values[name][0] for name in constants}

    listed = {
        config: Configuration({name: launch.options[name] for name in varied})
        for config, launch in launches.items()
    }
    grids = {listed[config]: launch.grid for config, launch in launches.items()}

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        return grids[Configuration({name: meta[name] for name in varied})]

    call = as_call(first.function, sizes, arguments, device=device, grid=grid)
    times = {_key(listed[m.config]): m.time_ms if m.ok else math.inf for m in measured}
    return _recorded(
        kernel.name, replace(call, function=first.function), configs=tuple(grids), times=times
    )


@contextmanager
def _prior_calls() -> Iterator[list[tuple[Call, tuple[Configuration, ...]]]]:
    """Note the calls and candidates for which a decorator makes a prior."""
    calls: list[tuple[Call, tuple[Configuration, ...]]] = []
    original = PriorFactory.make_prior

    def make_prior(self: PriorFactory, call: Call, rows: KernelRuns) -> Any:
        calls.append((call, tuple(rows.configs)))
        return original(self, call, rows)

    PriorFactory.make_prior = make_prior  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        PriorFactory.make_prior = original  # type: ignore[method-assign]


def _recorded(
    kernel: str, call: Call, configs: tuple[Configuration, ...], times: Times
) -> Recorded:
    """Return a call with the time of every candidate; infinite if it did not run."""
    time_ms = np.array([times.get(_key(config), math.inf) for config in configs])
    dtypes = [str(v.dtype) for v in call.arguments.values() if hasattr(v, "dtype")]
    return Recorded(
        kernel=kernel,
        dtype=dtypes[0].removeprefix("torch."),
        call=call,
        configs=configs,
        time_ms=np.where(time_ms < MAX_TIME_MS, time_ms, math.inf),
    )


def _key(values: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
    """Return what identifies a configuration: recordings contain default options, tuners do not."""
    left_out = ("time_ms", "num_ctas", "maxnreg", "ir_override")
    return frozenset((n, v) for n, v in values.items() if n not in left_out and v is not None)


def _config(values: Mapping[str, Any]) -> Any:
    import triton

    knobs = {n: v for n, v in values.items() if n not in (*LAUNCH, "time_ms", "num_ctas")}
    return triton.Config(knobs, **{name: values[name] for name in LAUNCH})
