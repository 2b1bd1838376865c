"""Which kernel shows a newcomer a gain? Best of a few configurations, the default, the library.

Per kernel and widest vector: what a campaign does in small, ten times. Each run
draws twelve configurations of a problem, takes the fastest, and measures it again beside the
default and the library call, in turn. One core, CPU time: other processes change little.

    taskset -c 0 python benchmarks/main_job.py [KERNEL …]
"""

import sys
import time
from collections.abc import Callable
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from foretune.errors import ForetuneError
from foretune.kernel import Kernel
from foretune.problem import Problem
from foretune.registry import get_kernel
from foretune.space import Configuration

KERNELS = ("softmax", "quantized_matvec", "examples/kernels/conv2d.py:Conv2d")
RUNS = 10
CONFIGURATIONS = 12
ROUNDS = 7
WIDTHS = (128, 256, 512)
"""Bits of the widest vector that a configuration may use, and the default's if it is wider."""
CLEAR_GAIN = 1.05


def cpu_ms(launch: Callable[[], Any]) -> float:
    start = time.process_time_ns()
    launch()
    return (time.process_time_ns() - start) * 1e-6


def interleaved(launches: list[Callable[[], Any]]) -> list[float]:
    """Return the median CPU time of each launch, measured in turn."""
    rounds = [[cpu_ms(launch) for launch in launches] for _ in range(ROUNDS)]
    return [median(times) for times in zip(*rounds, strict=True)]


def narrowed(config: Configuration, width: int) -> Configuration:
    """Return a configuration of one thread whose vectors have at most ``width`` bits."""
    values = dict(config)
    values["vector_bits"] = min(int(values["vector_bits"]), width)
    values["threads"] = 1
    if "split" in values:
        values["split"] = "blocks" if values["split"] in ("blocks", "interleaved") else "rows"
    return Configuration(values)


def one_run(kernel: Kernel, problem: Problem, width: int, seed: int) -> tuple[float, float]:
    """Return the chosen configuration's gain over the default, and over the library."""
    rng = np.random.default_rng(seed)
    inputs = kernel.make_inputs(problem, seed)
    space = kernel.space(problem)
    default = narrowed(kernel.default(problem), width)
    drawn = [narrowed(config, width) for config in space.sample(CONFIGURATIONS, rng)]

    launches = {}
    reference = kernel.reference(inputs)
    for config in dict.fromkeys([default, *drawn]):
        try:
            launch = kernel.build(problem, config, inputs)
        except ForetuneError:
            continue
        limit = min(kernel.error_limit(problem, config), float(problem.get("max_error", 1.0)))
        if kernel.relative_error(launch(), reference) <= limit:
            launches[config] = launch

    times = dict(zip(launches, interleaved([*launches.values()]), strict=True))
    fastest = min(times, key=lambda config: times[config])

    # Measured again: the fastest of many was also lucky.
    library = kernel.library(problem, inputs)
    contenders = [launches[fastest], launches[default]]
    if library is not None:
        contenders.append(library[1])
    again = interleaved(contenders)
    return again[1] / again[0], again[2] / again[0] if library is not None else float("nan")


def main(names: list[str]) -> None:
    print("| kernel | bits | over the default | clear in | over the library | clear in |")
    print("|---|---|---|---|---|---|")
    for name in names:
        kernel = get_kernel(name)
        for width in WIDTHS:
            problems = kernel.training_problems(RUNS, seed=1)
            gains = [one_run(kernel, p, width, seed) for seed, p in enumerate(problems)]
            over_default, over_library = zip(*gains, strict=True)
            cells = []
            for ratios in (over_default, over_library):
                clear = sum(ratio > CLEAR_GAIN for ratio in ratios)
                cells += [f"{geometric_mean(ratios):.2f}×", f"{clear} of {len(ratios)}"]
            print(f"| {kernel.name} | {width} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or [*KERNELS])
