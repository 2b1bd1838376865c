"""A predictor of a kernel of which nothing is known."""

import numpy as np
import pandas as pd
import pytest

from foretune.datasets.plain_tables import plain_runs
from foretune.models import Predictor
from foretune.models.distinct_problems import exact_problems
from foretune.models.learned_law import learn_law

N_ROWS = 240


@pytest.fixture(scope="module")
def runs():
    """Matrix products under a foreign name: operations, traffic and overhead."""
    rng = np.random.default_rng(0)
    sizes = 2.0 ** rng.uniform(6, 12, (N_ROWS, 3))
    table = pd.DataFrame(sizes.round(), columns=["height", "width", "depth"])
    operations = table.prod(axis=1) * 1e-9
    traffic = (table["height"] + table["width"]) * table["depth"] * 3e-7
    noise = rng.lognormal(0, 0.02, N_ROWS)
    return plain_runs(table.assign(time_ms=(0.01 + operations + traffic) * noise))


@pytest.fixture(scope="module")
def small_and_large(runs):
    work = runs[["problem.height", "problem.width", "problem.depth"]].prod(axis=1)
    is_large = work > work.quantile(0.8)
    return runs[~is_large].reset_index(drop=True), runs[is_large].reset_index(drop=True)


@pytest.fixture(scope="module")
def predictor(small_and_large):
    return Predictor().fit(small_and_large[0])


def test_learned_law_predicts_the_largest_problems(predictor, small_and_large):
    _, large = small_and_large

    predicted = predictor.predict(large)

    errors = np.abs(predicted["time_ms"] / large["time_ms"] - 1)
    assert errors.mean() < 0.1
    is_inside = (predicted["time_ms_low"] <= large["time_ms"]) & (
        large["time_ms"] <= predicted["time_ms_high"]
    )
    assert is_inside.mean() >= 0.8


def test_learned_law_loaded_predictor_predicts_the_same(predictor, small_and_large, tmp_path):
    predictor.save(tmp_path / "saved")

    loaded = Predictor.load(tmp_path / "saved")

    large = small_and_large[1]
    pd.testing.assert_frame_equal(loaded.predict(large), predictor.predict(large))


def test_learn_law_needs_four_problems(runs):
    few = runs.head(3)

    assert learn_law(few, np.log(few["time_ms"].to_numpy()), exact_problems(few)) is None


def test_learned_law_is_not_used_where_work_is_known(runs):
    known = runs.assign(**{"problem.flops": 1e9, "problem.bytes": 1e6, "device.fp32_gflops": 1e4})
    known = known.assign(**{"device.memory_gbps": 1e3})

    assert Predictor().fit(known).targets_["time_ms"].law is None
