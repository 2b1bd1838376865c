"""Run Triton kernels and print how far off each configuration's result is: one JSON per case.

    TRITON_INTERPRET=1 python triton_cases.py [NAME …]

A script of its own because Triton decides when a kernel is imported whether it is interpreted.
"""

import importlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "examples" / "kernels"))

from foretune.collect import InProcessRunner, Timing, local_devices
from foretune.collect.comparison import DEFAULT_REPEATED
from foretune.device import Device


class Case(NamedTuple):
    """What is run: the default configuration and some random ones, per problem.

    Attributes:
        kernel: ``module:class``.
        problems: of it; odd sizes first, which no tile divides.
        configs: random configurations per problem.
        change: spoils or replaces inputs, in place.
        wanted: random configurations must satisfy it.
        measured: by a runner, instead of just run.
    """

    kernel: str
    problems: list[dict[str, Any]]
    configs: int = 3
    change: Callable[[dict[str, Any]], None] | None = None
    wanted: Callable[[dict[str, Any]], bool] = lambda config: True
    measured: bool = False


def extremes(inputs):
    """Rows of large numbers, of equal ones, with -inf first and elsewhere, with one that counts."""
    x = inputs["x"]
    x[0] = 30000
    x[1, :700] = -np.inf
    x[2, 5:] = -np.inf
    x[3] *= 2000
    x[4, -1] = 20000


def far_from_zero(inputs):
    """Rows whose mean is a hundred times what they vary by."""
    inputs["x"].add_(100)


SOFTMAX = "triton_softmax:TritonSoftmax"
NORM = "triton_norm:TritonNorm"
ATTENTION = "triton_attention:TritonAttention"
ATTENTION_TMA = "triton_attention_tma:TritonAttentionTma"
CASES = {
    "softmax": Case(
        SOFTMAX,
        [
            {"R": 5, "C": 1037},
            {"R": 7, "C": 600, "dtype": "bf16"},
            {"R": 9, "C": 37, "dtype": "fp32"},
            {"R": 1, "C": 1},
        ],
    ),
    "softmax of long rows": Case(
        SOFTMAX, [{"R": 3, "C": 50001}, {"R": 2, "C": 40000, "dtype": "fp32"}], 1
    ),
    "softmax of extremes": Case(SOFTMAX, [{"R": 6, "C": 1500, "dtype": "fp32"}], 6, extremes),
    "softmax, persistent": Case(
        SOFTMAX, [{"R": 150, "C": 60}], 3, wanted=lambda config: config["PROGRAMS"] > 0
    ),
    "layer norm": Case(
        NORM,
        [
            {"R": 5, "C": 1037, "norm": "layer"},
            {"R": 7, "C": 600, "norm": "layer", "dtype": "bf16"},
            {"R": 9, "C": 37, "norm": "layer", "dtype": "fp32"},
            {"R": 2, "C": 1, "norm": "layer"},
        ],
    ),
    "rms norm": Case(
        NORM,
        [
            {"R": 5, "C": 1037},
            {"R": 7, "C": 600, "dtype": "bf16"},
            {"R": 9, "C": 37, "dtype": "fp32"},
            {"R": 1, "C": 1},
        ],
    ),
    "norms of long rows": Case(
        NORM, [{"R": 2, "C": 40001}, {"R": 3, "C": 33000, "norm": "layer"}], 1
    ),
    "layer norm far from zero": Case(
        NORM, [{"R": 3, "C": 2500, "norm": "layer", "dtype": "fp32"}], 5, far_from_zero
    ),
    "norms, persistent": Case(
        NORM,
        [{"R": 150, "C": 60}, {"R": 90, "C": 33, "norm": "layer"}],
        2,
        wanted=lambda config: config["PROGRAMS"] > 0,
    ),
    "causal attention": Case(
        ATTENTION,
        [
            {"seq_len": 77, "heads": 1, "head_dim": 64, "dtype": "fp16"},
            {"seq_len": 130, "heads": 1},
            {"seq_len": 1, "heads": 2, "batch": 2},
        ],
        wanted=lambda config: config["BLOCK_M"] > 16 or config["BLOCK_N"] > 16,
    ),
    "attention": Case(
        ATTENTION,
        [
            {"seq_len": 77, "heads": 1, "head_dim": 64, "mask": "none"},
            {"seq_len": 130, "heads": 1, "dtype": "fp16", "mask": "none"},
        ],
        wanted=lambda config: config["BLOCK_M"] > 16 or config["BLOCK_N"] > 16,
    ),
    "attention of groups": Case(
        ATTENTION,
        [
            {"batch": 2, "seq_len": 33, "heads": 6, "kv_heads": 2, "head_dim": 64},
            {"batch": 2, "seq_len": 40, "heads": 2, "kv_heads": 1, "mask": "none"},
        ],
        1,
    ),
    "attention by descriptors": Case(
        ATTENTION_TMA,
        [
            {"seq_len": 77, "heads": 2, "head_dim": 64, "dtype": "fp16"},
            {"batch": 2, "seq_len": 33, "heads": 4, "kv_heads": 2, "mask": "none"},
        ],
        2,
        wanted=lambda config: config["BLOCK_M"] > 16 or config["BLOCK_N"] > 16,
    ),
    "measured": Case(SOFTMAX, [{"R": 5, "C": 100}], 2, measured=True),
}


def run(case: Case) -> Iterator[dict[str, Any]]:
    """Yield one result per problem and configuration, and for the library's routine."""
    module, _, name = case.kernel.partition(":")
    kernel = getattr(importlib.import_module(module), name)()
    rng = np.random.default_rng(11)
    for values in case.problems:
        problem = kernel.problem(values)
        inputs = kernel.make_inputs(problem)
        if case.change:
            case.change(inputs)
        expected = kernel.reference(inputs)
        drawn = [c for c in kernel.space(problem).sample(300, rng) if case.wanted(c)]
        configs = [kernel.default(problem), *drawn[: case.configs]]
        if case.measured:
            yield from measure(kernel, problem, configs)
            return
        for config in configs:
            launch = kernel.build(problem, config, inputs)
            output = launch()
            kernel.invalidate_output(output)
            spoilt = kernel.relative_error(output, expected)
            yield {
                "problem": str(problem),
                "config": dict(config),
                "limit": kernel.error_limit(problem, config),
                "spoilt": spoilt,
                "error": kernel.relative_error(launch(), expected),
            }
        library, call = kernel.library(problem, inputs)
        error = kernel.relative_error(call(), expected)
        yield {
            "problem": str(problem),
            "library": library,
            "error": error,
            "limit": kernel.error_limit(problem, kernel.default(problem)),
        }


def measure(kernel, problem, configs) -> Iterator[dict[str, Any]]:
    """Yield one result per configuration, and the library's: all of them timed."""
    gpus = [device for device in local_devices() if device.kind == "gpu"]
    device = [*gpus, Device("Interpreter", "gpu")][0]
    runner = InProcessRunner(device, Timing(max_seconds=0.02, warmup_s=0.0), power=False)
    for m in runner.run(kernel, problem, configs):
        limit = kernel.error_limit(problem, m.config) if m.ok and m.time_ms > 0 else -1
        yield {
            "problem": str(problem),
            "config": dict(m.config),
            "error": m.relative_error,
            "limit": limit,
        }
    times = runner.compare_interleaved(kernel, problem, configs, max_seconds=0.0).time_ms
    (library,) = times.keys() - {DEFAULT_REPEATED, *(config.id for config in configs)}
    yield {"problem": str(problem), "library": library, "error": 0.0, "limit": times[library].min()}


if __name__ == "__main__":
    warnings.simplefilter("error", RuntimeWarning)  # NumPy's, when interpreted: an overflow
    for name in sys.argv[1:] or CASES:
        print(json.dumps({"case": name, "results": list(run(CASES[name]))}), flush=True)
