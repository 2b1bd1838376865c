"""What does a bit cost and gain? Products of bit planes, and passes of softmax, on this CPU.

    python benchmarks/bits.py [--rounds 60]

Three tables: error and time of a product by bits of a weight (`examples/kernels/bit_planes.py`),
beside NumPy's BLAS in single precision; what a search of 20 measurements takes under a limit on the
error, beside the fastest of all configurations that keep it; and softmax in two passes beside the
faster of both kinds in three, in and out of the cache, by one core. Times are the first decile of
launches in turns.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from machine import heading, markdown

from foretune.collect import InProcessRunner, local_device
from foretune.kernel import Launch
from foretune.objective import Limit
from foretune.registry import get_kernel
from foretune.relative_error import relative_error
from foretune.space import Configuration
from foretune.tune import tune_problem

EXAMPLE = Path(__file__).parents[1] / "examples/kernels/bit_planes.py"
SHAPES = ((1024, 1024), (8192, 4096))
LIMITS = (0.4, 0.2, 0.1, 0.03)
ROWS = ((64, 1024), (1, 1 << 24))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    kernel = get_kernel(f"{EXAMPLE}:BitPlanes")
    device = local_device()
    print(heading("Products by bits", device))
    for n, k in SHAPES:
        print(f"{n} × {k}\n")
        print_bits(kernel, kernel.problem(N=n, K=k), rounds)
    print("### Bits chosen under a limit\n")
    print_choices(kernel, kernel.problem(N=1024, K=2048), max(1, rounds // 3))
    print("### Softmax in two and three passes\n")
    print_passes(rounds)


def print_bits(kernel, problem, rounds: int) -> None:
    inputs = kernel.make_inputs(problem)
    expected = kernel.reference(inputs)
    configs = [Configuration(bits=b, x_bits=8, group=512, threads=1) for b in range(1, 9)]
    launches = [kernel.build(problem, config, inputs) for config in configs]
    errors = [relative_error(launch(), expected) for launch in launches]
    blas = kernel.library(problem, inputs)[1]
    blas_error = relative_error(blas(), expected)
    blas_ms, *times = in_turns([blas, *launches], rounds)
    rows = [
        [str(config["bits"]), f"{error:.3f}", f"{ms:.3f}", f"{blas_ms / ms:.1f}"]
        for config, error, ms in zip(configs, errors, times, strict=True)
    ]
    rows.append(["32 (BLAS)", f"{blas_error:.0e}", f"{blas_ms:.3f}", "1.0"])
    print(markdown(["bits", "error", "ms", "times faster"], rows))


def print_choices(kernel, problem, rounds: int) -> None:
    inputs = kernel.make_inputs(problem)
    expected = kernel.reference(inputs)
    space = [c for c in kernel.space(problem) if c["threads"] == 1]
    launches = [kernel.build(problem, config, inputs) for config in space]
    errors = np.array([relative_error(launch(), expected) for launch in launches])
    times = np.array(in_turns(launches, rounds))
    rows = []
    for limit in LIMITS:
        result = tune_problem(
            kernel,
            problem,
            InProcessRunner(local_device()),
            budget=20,
            store=False,
            limits=[Limit("relative_error", limit)],
        )
        config = result.winner.config
        assert config is not None
        place = space.index(Configuration({**config, "threads": 1}))
        best = int(np.argmin(np.where(errors <= limit, times, np.inf)))
        rows.append(
            [
                f"{limit:g}",
                *(
                    f"{c['bits']} × {c['x_bits']}, {c['group']}"
                    for c in (space[place], space[best])
                ),
                f"{errors[place]:.3f}",
                f"{times[best] / times[place]:.2f}",
            ]
        )
    columns = ["error at most", "chosen: bits × x bits, group", "fastest of all", "error", "kept"]
    print(markdown(columns, rows))


def print_passes(rounds: int) -> None:
    kernel = get_kernel("softmax")
    rows = []
    for r, c in ROWS:
        problem = kernel.problem(R=r, C=c)
        inputs = kernel.make_inputs(problem)
        base = {"unroll": 4, "unroll_scale": 4, "block": 0, "threads": 1, "split": "rows"}
        kinds = [
            (algorithm, bits, stream)
            for algorithm in ("three_pass_recompute", "three_pass_reload", "two_pass")
            for bits in (256, 512)
            for stream in (False, True)
        ]
        launches = [
            kernel.build(
                problem,
                Configuration(**base, algorithm=algorithm, vector_bits=bits, stream=stream),
                inputs,
            )
            for algorithm, bits, stream in kinds
        ]
        times = in_turns(launches, rounds if r > 1 else max(5, rounds // 4))
        for bits in (256, 512):
            ms = {
                a: min(t for t, k in zip(times, kinds, strict=True) if k[:2] == (a, bits))
                for a in {k[0] for k in kinds}
            }
            two = ms.pop("two_pass")
            rows.append(
                [
                    f"{r} × {c:,}",
                    str(bits),
                    min(ms, key=lambda a: ms[a]),
                    f"{min(ms.values()):.3f}",
                    f"{two:.3f}",
                    f"{min(ms.values()) / two - 1:+.0%}",
                ]
            )
    columns = ["rows × columns", "vector bits", "faster in three", "ms", "two passes, ms", "gain"]
    print(markdown(columns, rows))


def in_turns(launches: Sequence[Launch], rounds: int) -> list[float]:
    """Return the first decile of every launch's times, ms."""
    times: list[list[float]] = [[] for _ in launches]
    for _ in range(rounds):
        for launch, samples in zip(launches, times, strict=True):
            start = time.perf_counter()
            launch()
            samples.append(1e3 * (time.perf_counter() - start))
    return [float(np.quantile(samples, 0.1)) for samples in times]


if __name__ == "__main__":
    main()
