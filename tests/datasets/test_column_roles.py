"""What the columns of a stranger's table are."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.datasets.column_roles import column_roles
from foretune.errors import UsageError

SIZES = {"M": [64, 128, 256, 512] * 10, "N": [32] * 20 + [64] * 20}


def table(**columns):
    return pd.DataFrame({**SIZES, **columns})


@pytest.mark.parametrize(
    "column", ["kernel", "op", "name", "BLOCK_M", "blocksize1", "num_warps", "bk", "alpha"]
)
def test_configuration_is_known_by_name(column):
    roles = column_roles(table(**{column: [1, 2] * 20}))
    assert roles.sizes == ["M", "N"]
    assert roles.configuration == [column]


@pytest.mark.parametrize(
    "column",
    [
        "tflops",
        "GFLOPs",
        "TFlop_s",
        "GB/s",
        "tokens_per_s",
        "gpu_util",
        "min_us",
        "p99 [ms]",
        "ms_std",
        "temp",
        "idx",
    ],
)
def test_results_and_row_numbers_are_left_out(column):
    roles = column_roles(table(**{column: np.arange(40) * 1.5}))
    assert roles.left_out == [column]
    assert roles.sizes == ["M", "N"]


@pytest.mark.parametrize(
    ("cells", "example"),
    [(["64KiB", "1MiB"], "64KiB"), (["128", "1,00,000"], "1,00,000"), (["8x8", "9x9"], "8x8")],
)
def test_sizes_in_texts_are_said(cells, example):
    roles = column_roles(table(size=cells * 20))
    assert roles.texts == {"size": example}
    assert f"size as texts, like '{example}'" in roles.explained


def test_names_are_no_sizes_in_texts():
    assert not column_roles(table(dtype=["fp16", "fp32"] * 20)).texts


def test_dates_are_no_sizes():
    days = ["2026-01-01T10:00:00Z", "2026-01-02"] * 20
    moments = pd.date_range("2026-01-01", periods=40)
    assert column_roles(table(Created=days, at=moments)).left_out == ["Created", "at"]


def test_objects_around_a_column_tell_its_role():
    roles = column_roles(table(**{"cfg.x": [1, 2] * 20, "shape.BM": [1, 2] * 20, "r.BM": 1}))
    assert roles.sizes == ["M", "N", "shape.BM"]
    assert roles.configuration == ["cfg.x", "r.BM"]


def test_sizes_of_the_user_win():
    roles = column_roles(table(tile=[1, 2] * 20, tflops=range(40)), sizes=["M", "tflops"])
    assert roles.sizes == ["M", "tflops"]
    assert roles.configuration == ["N", "tile"]


def test_a_fraction_in_every_row_is_asked_for():
    fractions = np.random.default_rng(0).random(40)
    roles = column_roles(table(score=fractions))
    assert roles.doubtful == ["score"]
    with pytest.raises(UsageError, match=r"'score' may be a result .* --ignore score leaves it"):
        roles.require_no_doubt()
    column_roles(table(score=fractions), sizes=["M", "score"]).require_no_doubt()


def test_few_different_fractions_are_no_doubt():
    column_roles(table(density=[0.1, 0.25] * 20)).require_no_doubt()


def test_how_often_a_run_was_measured_is_asked_for_if_it_varies():
    assert column_roles(table(iterations=[10, 20] * 20)).doubtful == ["iterations"]
    assert column_roles(table(iterations=[10] * 40)).doubtful == []


def test_power_is_in_the_unit_of_its_name():
    assert column_roles(table(power=[100.0] * 40)).power_source == "power"
    assert column_roles(table(power_mw=[1e5] * 40)).power_source == "power_mw*0.001"
    assert column_roles(table(power_limit=[300, 400] * 20)).power is None
    with pytest.raises(UsageError, match="which are no watts: give --map power_w=power"):
        column_roles(table(power=[1e5] * 40))
    with pytest.raises(UsageError, match="avg_power, gpu_power may each be the power"):
        column_roles(table(avg_power=[1.0] * 40, gpu_power=[2.0] * 40))


def test_power_beside_that_of_a_run_table_is_left_out():
    roles = column_roles(table(power_w=[100.0] * 40, power=[99.0] * 40, gpu_power=[98.0] * 40))
    assert roles.power is None
    assert roles.left_out == ["power", "gpu_power"]


def test_names_that_are_numbers_are_texts():
    roles = column_roles(
        table(**{"time_ms": [1.0] * 40}).rename(columns={"M": 0}), taken=["time_ms"]
    )
    assert roles.sizes == ["0", "N"]


def test_devices_are_texts():
    assert column_roles(table(GPU=["A100", "H100"] * 20)).device == "GPU"
    assert column_roles(table(device=[0, 1] * 20)).device is None


def test_the_line_says_all():
    roles = column_roles(
        table(gpu=["A100"] * 40, tile=[1, 2] * 20, power_w_avg=[9.0] * 40, tflops=[1.0] * 40)
    )
    assert roles.explained == (
        "sizes M, N; configuration tile; devices from gpu; power in W from power_w_avg; left out "
        "tflops"
    )


def test_the_line_names_columns_of_run_tables_among_others():
    roles = column_roles(table(status=["ok"] * 40, time_ms=[1.0] * 40))
    assert roles.explained == "sizes M, N; as named status, time_ms"
    alike = pd.DataFrame({"problem.M": [1], "config.tile": [2], "time_ms": [3.0]})
    assert column_roles(alike).explained == ""


@given(st.lists(st.text(max_size=12), unique=True, max_size=8), st.booleans())
def test_every_column_has_one_role(names, are_texts):
    cells = {name: ["a", "b"] if are_texts else [1, 2] for name in names}
    try:
        roles = column_roles(pd.DataFrame(cells))
    except UsageError:  # several powers or devices
        return
    listed = [*roles.sizes, *roles.configuration, *roles.left_out, *roles.doubtful]
    listed += roles.run_columns
    listed += [name for name in (roles.device, roles.power) if name is not None]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(names)


def test_numbers_of_units_are_sizes_and_names_of_units_are_not():
    table = pd.DataFrame(
        {"hidden_units": [64, 128], "unit": ["ms", "ms"], "bw_units": ["GB/s", "GB/s"]}
    )
    roles = column_roles(table)
    assert roles.sizes == ["hidden_units"]
    assert set(roles.left_out) == {"unit", "bw_units"}
