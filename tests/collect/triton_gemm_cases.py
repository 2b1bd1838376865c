"""Run kernels of matrix products and print how far off each configuration's result is, as JSON.

    TRITON_INTERPRET=1 python triton_gemm_cases.py KERNEL …

A script of its own because Triton decides when it is imported whether kernels are interpreted.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from foretune.registry import get_kernel

# odd sizes: no tile and no group divides them
CASES = {
    "triton_gemm": [
        {"M": 37, "N": 83, "K": 70},
        {"M": 20, "N": 150, "K": 300, "dtype": "bf16", "layout": "nn"},
        {"M": 70, "N": 140, "K": 256, "dtype": "int8"},
        {"M": 45, "N": 200, "K": 270, "dtype": "fp8", "layout": "tn"},
        {"M": 1, "N": 1, "K": 1},
    ],
    "triton_quantized_gemm": [
        {"M": 5, "N": 70, "K": 256},
        {"M": 19, "N": 83, "K": 300, "group": 32, "zeros": "group"},
        {"M": 20, "N": 33, "K": 200, "bits": 8, "group": 64, "zeros": "group", "dtype": "bf16"},
        {"M": 3, "N": 40, "K": 512, "bits": 8, "group": 32},
        {"M": 1, "N": 1, "K": 1},
    ],
    "triton_grouped_gemm": [
        {"tokens": 37, "experts": 6, "top_k": 2, "N": 83, "K": 70},
        {"tokens": 50, "experts": 5, "top_k": 3, "N": 83, "K": 128, "skew": 1.0, "dtype": "fp16"},
        {"tokens": 33, "experts": 3, "top_k": 1, "N": 70, "K": 100, "skew": 4.0, "dtype": "fp8"},
        {"tokens": 2, "experts": 9, "top_k": 3, "N": 40, "K": 64},
        {"tokens": 1, "experts": 1, "top_k": 1, "N": 1, "K": 1},
    ],
}
KINDS: dict[str, Callable[[dict], bool]] = {
    "any": lambda config: True,
    "split": lambda config: config.get("SPLIT_K", 1) > 1,
    "persistent": lambda config: config.get("PERSISTENT", False),
    "along K": lambda config: config.get("ORDER") == "k",
    "long steps": lambda config: "ORDER" in config and config["BLOCK_K"] == 256,
}


def configurations(kernel, problem, rng, kinds) -> Iterator[tuple[str, dict]]:
    """Yield the default configuration, and a random one of each of the kinds, if there is one.

    Of a few, the one with the largest tiles: a program takes as long however small its tile is.
    """
    yield "default", kernel.default(problem)
    drawn = kernel.space(problem).sample(600, rng)
    for kind in kinds:
        if some := [config for config in drawn if KINDS[kind](config)][:12]:
            yield kind, max(some, key=lambda c: c["BLOCK_M"] * c["BLOCK_N"] * c["BLOCK_K"])


def results(names: list[str]) -> Iterator[dict]:
    """Yield one result per kernel, problem and configuration."""
    rng = np.random.default_rng(11)
    for kernel in map(get_kernel, names):
        for number, values in enumerate(CASES[kernel.name]):
            kinds = list(KINDS)
            if os.environ.get("TRITON_INTERPRET") == "1":  # slow, so each case has half of them
                kinds = kinds[number % 2 :: 2]
            problem = kernel.problem(values)
            inputs = kernel.make_inputs(problem)
            expected = kernel.reference(inputs)
            common = {"kernel": kernel.name, "problem": str(problem)}
            for kind, config in configurations(kernel, problem, rng, kinds):
                launch = kernel.build(problem, config, inputs)
                output = launch()
                kernel.invalidate_output(output)
                spoilt = kernel.relative_error(output, expected)
                yield {
                    **common,
                    "kind": kind,
                    "config": str(config),
                    "limit": kernel.error_limit(problem, config),
                    "spoilt": min(spoilt, 1e300),
                    "error": min(kernel.relative_error(launch(), expected), 1e300),
                }
            if library := kernel.library(problem, inputs):
                error = kernel.relative_error(library[1](), expected)
                limit = kernel.error_limit(problem, kernel.default(problem))
                yield {
                    **common,
                    "kind": "library",
                    "config": library[0],
                    "limit": limit,
                    "error": error,
                }


if __name__ == "__main__":
    warnings.simplefilter("error", RuntimeWarning)  # of NumPy, when interpreted: an overflow
    json.dump(list(results(sys.argv[1:])), sys.stdout)
