"""Costs of what code holds: learned from counts, and saved."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("llvmlite")
from from_code import START_NS, learn_costs, save_costs

from foretune.models.code_time import CodeTime


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
