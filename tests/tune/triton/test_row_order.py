"""The order of kernels without a product of tiles: `tune/triton/row_order.py`."""

import subprocess
import sys

import numpy as np
import pytest

from foretune.device import Device
from foretune.tune.triton.row_order import SHIPPED, RowLaunches, RowOrder, shipped_row_order

DEVICE = Device("a GPU", "gpu", specs={"cores": 100.0})


def launches(elements=4096.0, warps=(1.0, 4.0, 16.0), programs=1000.0):
    warps = np.array(warps)
    every = np.ones(len(warps))
    return RowLaunches(elements * every, warps, 3.0 * every, programs * every)


def test_row_launches_rule_prefers_16_elements_per_thread():
    rule = launches(elements=2048.0).rule()

    # 64, 16 and 4 elements per thread: two octaves away, none, two
    np.testing.assert_allclose(rule, [0.2, 0.0, 0.2])


def test_row_launches_columns_are_values_then_relative_to_the_median():
    columns = launches().columns(DEVICE)

    values, relative = np.hsplit(columns, 2)
    np.testing.assert_allclose(relative, values - np.median(values, axis=0))
    np.testing.assert_allclose(values[:, 1], [0.0, 2.0, 4.0])  # log2 of the warps
    np.testing.assert_allclose(values[:, 4], np.log2(1000 / 100))  # programs per core


def test_row_launches_unknown_number_of_programs_counts_as_one_per_core():
    assert np.isfinite(launches(programs=np.nan).columns(DEVICE)).all()
    np.testing.assert_allclose(launches(programs=np.nan).columns(DEVICE)[:, 4], 0.0)


def test_shipped_row_order_is_relative_to_the_best():
    for elements in (64.0, 4096.0, 65536.0):
        ratios = shipped_row_order().log_ratios(launches(elements=elements), DEVICE)
        assert ratios.min() == 0.0
        assert ratios.max() < 3.0


def test_shipped_row_order_is_small_and_loads_with_numpy_alone():
    code = (
        "import sys\n"
        "from foretune.tune.triton.row_order import shipped_row_order\n"
        "shipped_row_order()\n"
        "print({'pandas', 'sklearn', 'xgboost'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
    assert SHIPPED.stat().st_size < 1e5


def test_saved_row_order_says_the_same(tmp_path):
    shipped_row_order().save(tmp_path / "rows.npz")

    loaded = RowOrder.load(tmp_path / "rows.npz")

    expected = shipped_row_order().log_ratios(launches(), DEVICE)
    np.testing.assert_array_equal(loaded.log_ratios(launches(), DEVICE), expected)


def test_row_order_damaged_file_is_an_error(tmp_path):
    from foretune.errors import PredictorError

    (tmp_path / "rows.npz").write_bytes(b"no arrays")
    with pytest.raises(PredictorError, match="install Foretune again"):
        RowOrder.load(tmp_path / "rows.npz")
