"""An order of launches that learned from other kernels."""

import json
import subprocess
import sys

import numpy as np
import pytest

from foretune.features.launches import MAX_LOG_RATIO, LaunchFeatures
from foretune.models.launch_order import (
    MAX_LOG_SLOWDOWN,
    SHIPPED,
    LaunchOrder,
    MeasuredProblem,
    shipped_order,
)


def problems(kernel, count, seed, slope=1.0, candidates=12):
    """Times that follow the second column; a law that knows half of it; one that does not fit."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        values = rng.random((candidates, 3)).astype(np.float32)
        cost = slope * values[:, 1].astype(float)
        law = 0.3 * (cost - cost.min())
        fits = np.arange(candidates) > 0
        time_ms = np.where(fits, np.exp(cost + 0.02 * rng.standard_normal(candidates)), np.inf)
        columns = LaunchFeatures(values, np.minimum(law, MAX_LOG_RATIO), fits)
        found.append(MeasuredProblem(kernel, columns, time_ms))
    return found


@pytest.fixture(scope="module")
def order():
    pytest.importorskip("xgboost")
    return LaunchOrder.fit([*problems("a", 40, 0), *problems("b", 40, 1)])


def test_it_orders_a_kernel_it_has_never_seen(order):
    kept = []
    for p in problems("c", 30, 2, slope=1.5):
        ratios = order.log_ratios(p.columns)
        pick = np.flatnonzero(p.columns.fits)[np.argmin(ratios[p.columns.fits])]
        kept.append(p.relative_speed[pick])
    assert np.mean(kept) > 0.95


def test_its_ratios_are_those_of_times(order):
    expected, seen = [], []
    for p in problems("c", 30, 3):
        runs = p.columns.fits
        expected += order.log_ratios(p.columns)[runs].tolist()
        seen += p.log_slowdown[runs].tolist()
    assert np.mean(np.abs(np.array(expected) - seen)) < 0.1
    assert max(expected) <= MAX_LOG_SLOWDOWN + 0.1


def test_one_kernel_is_enough_to_learn_from():
    pytest.importorskip("xgboost")
    assert np.diff(LaunchOrder.fit(problems("a", 30, 0)).ratios).min() > 0


def test_saved_it_says_the_same(order, tmp_path):
    order.save(tmp_path / "order.npz")
    again = LaunchOrder.load(tmp_path / "order.npz")
    (p,) = problems("c", 1, 4)
    np.testing.assert_array_equal(again.log_ratios(p.columns), order.log_ratios(p.columns))


def test_the_shipped_one_is_small_and_says_what_it_learned_from():
    card = json.loads(SHIPPED.with_suffix(".json").read_text())
    assert SHIPPED.stat().st_size < 2e6
    for table in card["tables"].values():
        assert {"kernel", "device", "problems", "dtypes", "sha256"} <= set(table)
    # curves rise: what is ordered stays ordered
    assert (np.diff(shipped_order().ratios) > 0).all()


def test_the_shipped_one_is_read_without_what_it_was_made_with():
    code = (
        "import sys\n"
        "from foretune.models.launch_order import shipped_order\n"
        "shipped_order()\n"
        "print({'pandas', 'sklearn', 'xgboost', 'scipy'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
