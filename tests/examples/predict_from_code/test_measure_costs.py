"""Costs of what code holds: learned from counts, and saved."""

import shutil

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("llvmlite")
from mca import simulated_cycles
from measure_costs import START_NS, learn_costs, save_costs
from predict_from_code.calls import code_of
from predict_from_code.code_time import CodeTime

from foretune.collect.wrapped.source import LaunchShape, Source
from foretune.collect.wrapped.source_kernel import SourceKernel


def test_costs_are_learned_from_times(tmp_path):
    rng = np.random.default_rng(0)
    counts = pd.DataFrame({"cycles": 10 ** rng.uniform(3, 6, 300)})
    counts["l2"] = counts["cycles"] * rng.uniform(0, 2, 300)
    true = CodeTime({**START_NS, "cycles": 0.5, "l2": 0.2})
    kernels = np.repeat([f"k{i}" for i in range(30)], 10)
    fitted = learn_costs(counts, true.predict(counts), kernels, "this CPU")
    assert fitted.predict(counts) == pytest.approx(true.predict(counts), rel=0.08)
    assert fitted.costs["cycles"] == pytest.approx(0.5, rel=0.2)
    save_costs(fitted, tmp_path / "costs.json")
    again = CodeTime.load(tmp_path / "costs.json")
    assert (again.costs, again.device) == (fitted.costs, "this CPU")


@pytest.mark.skipif(not (shutil.which("clang") and shutil.which("llvm-mca")), reason="needs LLVM")
def test_simulated_cycles_of_c():
    text = "void add(float *restrict x, int n) { for (int i = 0; i < n; i += STEP) x[i] += 1.0f; }"
    source = Source("add", text, "C", ".c", options=("-O1",))
    shape = LaunchShape(6400, (None, None, None), ("block_size_x",))
    arguments = [np.zeros(6400, np.float32), np.int32(6400)]
    kernel = SourceKernel(source, shape, arguments, {"STEP": (1, 4)})
    problem = kernel.problem()
    cycles = [simulated_cycles(code_of(kernel, problem, c)) for c in kernel.space(problem)]
    assert cycles[0] == pytest.approx(4 * cycles[1], rel=0.1)
