"""Foretune inside other tuners, beside the tuner alone, in one run.

    python benchmarks/doors.py kernel-tuner SPACES [--only NAMES] [--repeats 5]

``kernel-tuner``: Kernel Tuner's simulation mode replays the recorded spaces of SPACES (run tables)
with Foretune's strategy, two of its own and random sampling. A space's share after n evaluations is
the fastest time / the fastest of the first n; the table has geometric means over spaces and seeds.
"""

import argparse
import json
import random
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import heading, markdown
from scipy.stats import gmean
from spaces import complete_spaces

from foretune.collect import local_device
from foretune.search.replay.recorded import RecordedSpace
from foretune.tune.doors import KernelTunerStrategy

EVALUATIONS = (10, 20, 50, 100)
STRATEGIES: dict[str, Callable[[], Any]] = {
    "Foretune": KernelTunerStrategy,
    "hybrid_vndx": lambda: "hybrid_vndx",
    "adaptive_tabu_greywolf": lambda: "adaptive_tabu_greywolf",
    "random_sample": lambda: "random_sample",
}


def write_cache(space: RecordedSpace, path: Path) -> None:
    """Write a recorded space as a cache file of Kernel Tuner."""
    cache = {}
    for m in space.measurements:
        time = m.time_ms if m.ok else "RuntimeFailedConfig"
        zeros = dict.fromkeys(("compile_time", "verification_time", "benchmark_time"), 0.0)
        cache[",".join(map(str, m.config.values()))] = {**m.config, "time": time, **zeros}
    content = {
        "device_name": space.device.name, "kernel_name": space.kernel, "problem_size": 1,
        "tune_params_keys": space.space.names, "tune_params": space.space.parameters,
        "objective": "time", "cache": cache,
    }  # fmt: skip
    path.write_text(json.dumps(content), encoding="utf-8")


def simulate(
    space: RecordedSpace, cache: Path, strategy: Any, seed: int, evaluations: int, **options: Any
) -> list[dict[str, Any]]:
    """Return the distinct results of Kernel Tuner's simulation mode, in their order."""
    from constraint import FunctionConstraint
    from kernel_tuner import tune_kernel

    warnings.simplefilter("ignore", UserWarning)  # the source in the call is empty
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  Kernel Tuner draws from it
    names = space.space.names
    recorded = {tuple(config.values()) for config in space.space}
    results, _ = tune_kernel(
        space.kernel, f"void {space.kernel}() {{}}", 1, [],
        {name: list(values) for name, values in space.space.parameters.items()}, lang="C",
        restrictions=[FunctionConstraint(lambda *values: values in recorded)],
        strategy=strategy, strategy_options={"max_fevals": evaluations, **options}, seed=seed,
        simulation_mode=True, cache=str(cache), quiet=True,
    )  # fmt: skip
    return list({tuple(r[n] for n in names): r for r in reversed(results)}.values())[::-1]


def shares(space: RecordedSpace, results: list[dict[str, Any]]) -> list[float]:
    """Return the share of the optimum after each number of `EVALUATIONS`."""
    times = [np.inf if "__error__" in r else r["time"] for r in results]
    # Before anything has run, the median counts.
    usual = float(np.median(space.values))
    return [space.optimum / min([*times[:n], usual]) for n in EVALUATIONS]


def kernel_tuner(spaces: list[RecordedSpace], repeats: int) -> str:
    """Return the table of Kernel Tuner's simulation mode."""
    found: dict[str, list[list[float]]] = {name: [] for name in STRATEGIES}
    with tempfile.TemporaryDirectory() as folder:
        for space in spaces:
            cache = Path(folder, "cache.json")
            write_cache(space, cache)
            for name, make in STRATEGIES.items():
                runs = (simulate(space, cache, make(), s, max(EVALUATIONS)) for s in range(repeats))
                found[name] += [shares(space, results) for results in runs]
    rows = [
        [name, *(f"{gmean(column):.3f}" for column in zip(*runs, strict=True)),
         f"{min(run[-1] for run in runs):.3f}"]
        for name, runs in found.items()
    ]  # fmt: skip
    return markdown(["strategy", *map(str, EVALUATIONS), f"worst at {EVALUATIONS[-1]}"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool", choices=["kernel-tuner"])
    parser.add_argument("spaces", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    spaces = complete_spaces(options.spaces, options.only)
    print(heading("Foretune in Kernel Tuner", local_device("cpu")))
    print(f"{', '.join(s.name for s in spaces)}; {options.repeats} seeds\n")
    print(kernel_tuner(spaces, options.repeats))


if __name__ == "__main__":
    main()
