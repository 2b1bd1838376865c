"""Foretune against exhaustive `triton.autotune` on a GPU: GEMM, attention, softmax, norm.

Every kernel has a list of configurations. Stock Triton measures all of them on every problem, so
the best is known. Foretune tunes five problems of each kernel one after the other, starting with an
empty store, and then chooses for five unseen problems with 0, 1, 4 and 8 measurements and with
"auto". Prints for each kernel: the share of the best performance that is kept (median and
smallest), the measurements, the seconds, and the time of the library call. Seconds include
compilation: each tuner has its own compiler cache, unless ``--compiled`` gives one folder to all.
"Cold" starts with an empty store on every problem. For GEMM, the configurations on the list nearest
to the eight that nvMatmulHeuristics proposes are a baseline, if that package is installed.

    python benchmarks/gpu_autotune.py --minutes 8
    python benchmarks/gpu_autotune.py --replay          # no GPU: made-up times, to see that it runs

Rows and times are written to ``--out`` at once. Problems for which the time does not suffice are
left out, and named. Needs torch, Triton and Foretune, nothing else.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from gpu_cases import Case, cases
from machine import markdown

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "replay_gpu"))

from replay_driver import ReplayDriver, ReplayedLaunch

import foretune
from foretune.collect.versions import versions
from foretune.errors import ForetuneWarning
from foretune.problem import Problem

BUDGETS: tuple[int | str, ...] = (0, 1, 4, 8, "auto")
COLD_BUDGET = 4


@dataclass
class Spent:
    """What an autotuner did on one problem."""

    share: float
    measured: int
    seconds: float


@dataclass
class Results:
    """Of one kernel."""

    exhaustive: dict[Problem, dict[triton.Config, float]] = field(default_factory=dict)
    stock_seconds: list[float] = field(default_factory=list)
    ours: dict[str, list[Spent]] = field(default_factory=dict)
    library: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--configs", type=int, default=40, help="on each kernel's list")
    parser.add_argument("--kernels", nargs="*", help="of gemm, attention, softmax, norm")
    parser.add_argument("--rep", type=int, help="milliseconds per configuration; default: Triton's")
    parser.add_argument("--compiled", type=Path, help="one cache of programs for all tuners")
    parser.add_argument("--replay", action="store_true", help="replay made-up times, no GPU")
    parser.add_argument("--compile-for", metavar="DEVICE", help="with --replay: really compile")
    parser.add_argument("--out", type=Path, default=Path("gpu-autotune.jsonl"))
    options = parser.parse_args()
    if options.compile_for and not options.replay:
        parser.error("--compile-for is for --replay")
    if not options.replay and not torch.cuda.is_available():
        raise SystemExit("no GPU here: --replay shows that the benchmark runs, with made-up times")
    device = options.compile_for
    compiled = {"device": device, "compile": True} if device else {}
    driver = ReplayDriver(made_up, **compiled) if options.replay else None
    bench = {}
    if options.rep and not driver:
        bench["do_bench"] = partial(triton.testing.do_bench, warmup=5, rep=options.rep)
    deadline = time.monotonic() + 60 * options.minutes
    with driver.active() if driver else nullcontext(), options.out.open("a") as log:
        chosen = {
            name: case
            for name, case in cases(options.configs).items()
            if not options.kernels or name in options.kernels
        }
        rows = []
        for i, (name, case) in enumerate(chosen.items()):
            # each kernel gets an equal share of the remaining time
            until = time.monotonic() + (deadline - time.monotonic()) / (len(chosen) - i)
            results = compare(case, until, partial(note, log, name), bench, options.compiled)
            rows += table(name, case, results)
        where = "made-up times" if driver else torch.cuda.get_device_name()
    print(f"### Decorator against exhaustive tuning\n\n{where}; {versions()}\n")
    columns = ["kernel", "tuner", "best kept: median", "least", "measured", "seconds", "problems"]
    print(markdown(columns, rows))


def compare(
    case: Case,
    until: float,
    note: Callable[[dict[str, Any]], None],
    bench: dict[str, Any],
    compiled: Path | None,
) -> Results:
    """Return the results of both tuners on a case's problems, until the time is over.

    ``bench`` are options of both tuners; ``compiled`` is a cache of programs for all, or None.
    """
    results = Results()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "tuned.db"
        stock = case.decorated(triton.autotune, **bench)
        learning = case.decorated(foretune.autotune, store=store, **bench)
        for problem in [*case.tuned, *case.unseen]:
            if time.monotonic() > until:
                break
            inputs = case.inputs(problem)
            with compiling_into(compiled or Path(folder) / "stock"):
                start = time.perf_counter()
                case.launch(stock, problem, inputs)()
                results.stock_seconds.append(time.perf_counter() - start)
            times = {c: _first(t) for c, t in stock.configs_timings.items()}
            tried = [{**c.all_kwargs(), "time_ms": times[c]} for c in times]
            note({"problem": dict(problem), "tuner": "triton.autotune", "times": tried})
            results.exhaustive[problem] = times
            results.library.append(_library_ms(case, problem, inputs) / min(times.values()))
            fresh = Path(tempfile.mkdtemp(dir=folder)) / "cold.db"
            cold = case.decorated(foretune.autotune, store=fresh, budget=COLD_BUDGET, **bench)
            label = f"Foretune {COLD_BUDGET}, cold"
            spent = _run(case, cold, problem, inputs, times, compiled or fresh.parent)
            results.ours.setdefault(label, []).append(spent)
            note({"problem": dict(problem), "tuner": label, **vars(spent)})
            if problem in case.tuned:
                label = "Foretune auto, learning"
                own = compiled or Path(folder) / "learning"
                spent = _run(case, learning, problem, inputs, times, own)
                results.ours.setdefault(label, []).append(spent)
                note({"problem": dict(problem), "tuner": label, **vars(spent)})
                continue
            for budget in BUDGETS:
                label = f"Foretune {budget}, unseen"
                knowing = case.decorated(
                    foretune.autotune, store=_copy(store), budget=budget, **bench
                )
                own = compiled or Path(folder) / f"budget{budget}"
                spent = _run(case, knowing, problem, inputs, times, own)
                results.ours.setdefault(label, []).append(spent)
                note({"problem": dict(problem), "tuner": label, **vars(spent)})
    return results


def table(name: str, case: Case, results: Results) -> list[list[str]]:
    """Return the rows of one kernel."""
    if not results.exhaustive:
        return [[name, "no time was left", "", "", "", "", "0"]]
    n = len(case.configs)
    seconds = statistics.mean(results.stock_seconds)
    count = str(len(results.exhaustive))
    rows = [[name, "triton.autotune", "1", "1", str(n), f"{seconds:.1f}", count]]
    for label, spent in results.ours.items():
        shares = [s.share for s in spent]
        rows.append(
            [
                name,
                label,
                f"{statistics.median(shares):.3f}",
                f"{min(shares):.3f}",
                f"{statistics.mean(s.measured for s in spent):.1f}",
                f"{statistics.mean(s.seconds for s in spent):.1f}",
                str(len(spent)),
            ]
        )
    known = [r for r in results.library if r == r]
    if known:
        inverse = [1 / r for r in known]
        rows.append(
            [
                name,
                "library call",
                f"{statistics.median(inverse):.3f}",
                f"{min(inverse):.3f}",
                "0",
                "0",
                str(len(known)),
            ]
        )
    if name == "gemm" and (shares := heuristic_shares(results)):
        rows.append(
            [
                name,
                "nvMatmulHeuristics, best of 8",
                f"{statistics.median(shares):.3f}",
                f"{min(shares):.3f}",
                "8",
                "–",
                str(len(shares)),
            ]
        )
    return rows


def heuristic_shares(results: Results) -> list[float]:
    """Return what is kept by the configurations nearest to nvMatmulHeuristics' eight proposals."""
    try:
        import nvMatmulHeuristics as nv  # noqa: N813
    except ImportError:
        return []
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "NVIDIA H200"
    gpu = next((g for g in nv.NvMatmulHeuristicsNvidiaGpu if g.name.split("_")[0] in name), None)
    if gpu is None:
        return []
    layout = nv.NvMatmulHeuristicsMatmulLayout.NT_ROW_MAJOR
    interface = nv.NvMatmulHeuristicsInterfaceEx(
        backend=nv.NvMatmulHeuristicsTarget.TRITON, gpu=gpu
    )
    shares = []
    for problem, times in results.exhaustive.items():
        sizes = (int(problem[p]) for p in "MNK")
        found = interface.get_with_mnk(*sizes, layout, 8)
        nearest = {min(times, key=partial(_distance, proposed=f["kernel"])) for f in found}
        shares.append(min(times.values()) / min(times[c] for c in nearest))
    return shares


def _distance(config: triton.Config, proposed: Any) -> float:
    """Return octaves between a configuration and a proposal, tile edges counting most."""
    values = config.kwargs
    wanted = {
        "BLOCK_M": proposed.cta_tile_m,
        "BLOCK_N": proposed.cta_tile_n,
        "BLOCK_K": proposed.cta_tile_k,
    }
    tile = sum(abs(np.log2(values[name] / size)) for name, size in wanted.items())
    return float(tile + 0.3 * abs(config.num_stages - proposed.stages))


def _run(
    case: Case,
    tuner: Any,
    problem: Problem,
    inputs: Any,
    times: dict[triton.Config, float],
    compiled: Path,
) -> Spent:
    with compiling_into(compiled), warnings.catch_warnings():
        warnings.simplefilter("error", ForetuneWarning)  # falling back would be no result
        tuner.configs_timings = {}
        start = time.perf_counter()
        case.launch(tuner, problem, inputs)()
        seconds = time.perf_counter() - start
    share = min(times.values()) / times[tuner.best_config]
    return Spent(share, len(tuner.configs_timings), seconds)


def _library_ms(case: Case, problem: Problem, inputs: Any) -> float:
    """Return what the library call takes; NaN without one, and where times are made up."""
    library = case.kernel.library(problem, inputs)
    if library is None or not torch.cuda.is_available():
        return float("nan")
    return _first(triton.testing.do_bench(library[1], quantiles=(0.5, 0.2, 0.8)))


def _copy(store: Path) -> Path:
    """Return a copy of the store: what one budget learns, the next must not know."""
    copy = Path(tempfile.mkdtemp(dir=store.parent)) / "tuned.json"
    foretune.Store(store).export(copy)
    fresh = copy.with_suffix(".db")
    foretune.Store(fresh).merge(copy)
    return fresh


@contextmanager
def compiling_into(folder: Path) -> Iterator[None]:
    """Give a tuner a separate compiler cache."""
    before = triton.knobs.cache.dir
    triton.knobs.cache.dir = str(folder)
    try:
        yield
    finally:
        triton.knobs.cache.dir = before


def made_up(launch: ReplayedLaunch) -> float:
    """Return a time that depends on problem and configuration in ways a GPU's might: no claim."""
    values = {n: v for n, v in launch.config.items() if isinstance(v, int) and v > 0}
    programs = float(np.prod(launch.grid))
    off = sum((np.log2(v) - 3 - i % 4) ** 2 for i, v in enumerate(values.values()))
    waves = np.ceil(programs / 132) / (programs / 132)
    return float(1e-3 * np.sqrt(programs) * (1 + 0.03 * off) * waves)


def note(log: Any, kernel: str, row: dict[str, Any]) -> None:
    log.write(json.dumps({"kernel": kernel, **row}) + "\n")
    log.flush()


def _first(timing: Any) -> float:
    return float(np.ravel(timing)[0])


if __name__ == "__main__":
    main()
