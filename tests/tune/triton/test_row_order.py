"""The order of kernels without a product of tiles: `tune/triton/row_order.py`."""

import numpy as np

from foretune.tune.triton.row_order import RowLaunches, row_prior


def launches(elements):
    warps = np.array([1.0, 4.0, 16.0])
    return RowLaunches(elements * np.ones(len(warps)), warps)


def test_row_launches_prefer_16_elements_per_thread():
    # 64, 16 and 4 elements per thread: two octaves away, none, two
    np.testing.assert_allclose(launches(elements=2048.0).log_slowdowns(), [0.2, 0.0, 0.2])


def test_row_prior_is_relative_to_the_best():
    for elements in (64.0, 4096.0, 65536.0):
        prior = row_prior(launches(elements))
        assert prior.log_mean.min() == 0.0
        assert prior.log_mean.max() < 3.0
        assert (prior.p_valid == 1.0).all()
