"""Which kernel or family knows runs: `features/families_of_runs.py`."""

import numpy as np
import pandas as pd
import pytest

from foretune.collect.wrapped.function import FunctionKernel
from foretune.errors import PredictorError
from foretune.family import Cost, Family
from foretune.features.families_of_runs import family_for, find_family
from foretune.registry import load


class Theirs(Family):
    name = "theirs"

    def cost(self, problem, config):
        return Cost(1.0, 1.0)


def runs(**problem):
    columns = {f"problem.{name}": [value] for name, value in problem.items()}
    return pd.DataFrame({**columns, "config.algorithm": ["two_pass"]})


def kind(name, table, given=None):
    found = family_for(name, table, given)
    return found and f"{type(found).__module__.split('.')[1]} {type(found).__name__}"


def test_find_family_by_columns_if_names_collide():
    assert kind("softmax", runs(R=8, C=64)) == "collect Softmax"
    assert kind("softmax", runs(rows=8, columns=64)) == "features Softmax"
    assert kind("softmax", runs(height=8)) is None


def test_find_family_needs_its_columns():
    assert kind("gemm", runs(M=8, N=8, K=8)) == "features Gemm"
    assert kind("gemm", runs(M=8, N=8)) is None
    assert kind("gemm", runs(M="many", N=8, K=8)) is None
    assert kind("matmul", runs(M=8, N=8)) == "collect Matmul"
    assert kind("nobody's", runs(M=8)) is None


def test_find_family_given_kernel_comes_first():
    mine = Theirs()
    assert family_for("theirs", runs(M=8), mine) is mine
    with pytest.raises(PredictorError, match="of kernel 'gemm', not of 'theirs'"):
        family_for("gemm", runs(M=8, N=8, K=8), mine)


def test_find_family_by_class_name():
    for ours in (load(group, "softmax")() for group in ("kernels", "families")):
        found = find_family("softmax", "Softmax", source=ours.source_hash)
        assert type(found) is type(ours)
    assert find_family("gemm", None) is None
    mine = Theirs()
    assert find_family("theirs", "Theirs", mine) is mine
    with pytest.raises(PredictorError, match=r"'theirs' \(Theirs\) is unknown here"):
        find_family("theirs", "Theirs")
    with pytest.raises(PredictorError, match="is unknown here"):
        find_family("gemm", "OtherGemm")


def test_kernel_without_cost_has_no_roofline():
    """Its runs are learned from without one; with its work said, it has one."""

    def sums(x, block=1):
        return x.sum()

    knobs = {"block": [1, 2]}
    args = (np.ones(8),)
    without = FunctionKernel(sums, knobs, args)
    table = runs(x_0=8.0)
    assert family_for("sums", table, without) is None
    work = FunctionKernel(sums, knobs, args, cost=lambda p, c: Cost(1.0 * p["x_0"], 8.0 * p["x_0"]))
    assert family_for("sums", table, work) is work
    assert work.cost({"x_0": 8}, {}).bytes_moved == 64
