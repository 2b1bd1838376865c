"""Tuning one small function with Foretune and with other tools, as a new user of each would.

    PYTHONPATH=src python benchmarks/side_by_side.py

Each tool gets the same function, 13 block sizes and eight measurements, in a fresh process. Printed
are the seconds until its answer (Foretune verifies it, the others do not), lines of the user's code
beside the function, its one-line plot, and what a notebook shows of the result. A tool that is not
installed has dashes. Kernel Tuner takes no Python functions: it gets the function in C.
"""

import resource
import subprocess
import sys
import time
from importlib.util import find_spec

from machine import heading, markdown

from foretune.collect import local_device

FUNCTION = """
import numpy as np
x = np.random.default_rng(0).random((4096, 64))
BLOCKS = [2**i for i in range(13)]
def row_sums(x, block=16):
    return np.concatenate([x[i : i + block].sum(axis=1) for i in range(0, len(x), block)])
"""
TIMED = """
import time
right = row_sums(x)
def milliseconds(block):
    times = []
    for _ in range(20):
        start = time.perf_counter()
        output = row_sums(x, block)
        times.append(1e3 * (time.perf_counter() - start))
    assert np.allclose(output, right)
    return min(times)
"""
FORETUNE = """
import foretune as ft
found = ft.tune_function(row_sums, {"block": BLOCKS}, args=(x,), budget=8, store=False)
print(found)
"""
OPTUNA = f"""{TIMED}
import optuna
optuna.logging.set_verbosity(optuna.logging.WARNING)
found = optuna.create_study()
found.optimize(lambda t: milliseconds(t.suggest_categorical("block", BLOCKS)), n_trials=8)
print(found.best_params, found.best_value)
"""
AX = f"""{TIMED}
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig
found = Client()
found.configure_experiment(
    [ChoiceParameterConfig(name="block", values=BLOCKS, parameter_type="int", is_ordered=True)])
found.configure_optimization(objective="-ms")
for _ in range(8):
    for trial, config in found.get_next_trials(max_trials=1).items():
        found.complete_trial(trial, raw_data={{"ms": milliseconds(**config)}})
print(found.get_best_parameterization())
"""
KERNEL_TUNER = """
import numpy as np
from kernel_tuner import tune_kernel
source = '''
#include <time.h>
float row_sums(double *out, double *x, int rows) {
    struct timespec a, b; clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < rows; i += block)
        for (int r = i; r < i + block && r < rows; r++) {
            out[r] = 0; for (int c = 0; c < 64; c++) out[r] += x[64 * r + c]; }
    clock_gettime(CLOCK_MONOTONIC, &b);
    return 1e3f * (b.tv_sec - a.tv_sec) + 1e-6f * (b.tv_nsec - a.tv_nsec); }
'''
x = np.random.default_rng(0).random((4096, 64))
found, env = tune_kernel("row_sums", source, 4096, [np.zeros(4096), x, np.int32(4096)],
    {"block": [2**i for i in range(13)]}, answer=[x.sum(axis=1), None, None], lang="C",
    strategy="random_sample", strategy_options={"max_fevals": 8}, compiler="gcc")
print(min(found, key=lambda row: row["time"]))
"""
TOOLS = {
    "Foretune": ("foretune", FUNCTION, FORETUNE, "ft.plot.history(best)"),
    "Optuna": ("optuna", FUNCTION, OPTUNA, "optuna.visualization.plot_optimization_history(study)"),
    "Kernel Tuner": ("kernel_tuner", "", KERNEL_TUNER, "–"),
    "Ax": ("ax", FUNCTION, AX, "client.compute_analyses()"),
}
"""Tool -> its module, the function, the user's code, its plot in one line."""
SHOWN = "\nprint('in a notebook:', 'a view' if hasattr(found, '_repr_html_') else 'text')\n"


def main() -> None:
    """Run every tool and print the table."""
    print(heading("Side by side", local_device("cpu")))
    columns = ["tool", "seconds", "CPU seconds", "lines", "a plot", "a result in a notebook"]
    print(markdown(columns, [row(name, *tool) for name, tool in TOOLS.items()]))


def row(name: str, module: str, function: str, code: str, plot: str) -> list[str]:
    """Return the line of one tool."""
    lines = str(sum(bool(line.strip()) for line in code.splitlines()))
    if find_spec(module) is None:
        return [name, "–", "–", lines, "–", "–"]
    start = time.monotonic()
    before = cpu_seconds()
    done = subprocess.run(
        [sys.executable, "-c", function + code + SHOWN], capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - start
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip()[-800:]}")
    view = done.stdout.rpartition("in a notebook: ")[2].strip()
    used = f"{cpu_seconds() - before:.1f}"
    return [name, f"{seconds:.1f}", used, lines, plot if plot == "–" else f"`{plot}`", view]


def cpu_seconds() -> float:
    """Return the CPU time of all ended children, which other work delays less than wall time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
