"""Costs of what code holds: read, refused, and what they predict."""

import numpy as np
import pytest
from predict_from_code.code_time import CodePredictor, CodeTime

from foretune.collect.wrapped.function import FunctionKernel
from foretune.device import Device
from foretune.errors import PredictorError
from foretune.models.guides.guide import make_guide


def test_shipped_costs_order_the_caches():
    costs = CodeTime.load().costs
    assert 0 < costs["l2"] < costs["l3"]


def test_a_file_without_costs_is_refused(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text('{"costs": {"cycles": 1}}')
    with pytest.raises(PredictorError, match="holds no costs"):
        CodeTime.load(path)


def test_a_search_is_guided_by_code_and_not_by_too_much_of_it():
    numba = pytest.importorskip("numba")

    @numba.njit
    def count(x, step=1):
        for i in range(0, x.size, step):
            x[i] += 1

    kernel = FunctionKernel(count, {"step": tuple(range(1, 1002))}, (np.zeros(100_000),))
    problem, device = kernel.problem(), Device("this CPU", "cpu")
    guide = make_guide(CodePredictor(kernel), device)
    found = guide.predict_space(problem, kernel.space(problem), np.array([0, 99]))
    assert found["time_ms"][1] < found["time_ms"][0] < found["time_ms_high"][0]
    with pytest.raises(PredictorError, match="1,001 configurations are too many"):
        guide.predict_space(problem, kernel.space(problem))
