"""Screening of measured operators: what contradicts itself is left out, and nothing else."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.plan.cost import measured_operators
from foretune.plan.cost.measured_operators import MeasuredOperators
from foretune.plan.cost.screening import (
    MAX_TIME_RATIO,
    QUANTIZE_MS,
    RejectedRows,
    capped_times,
    describe_rejected,
    duplicated_formats,
    non_monotonic_rows,
)


def curve(times, shape=1):
    return pd.DataFrame(
        {"load": [2**i for i in range(len(times))], "shape": shape, "time_ms": times}
    )


@pytest.mark.parametrize(
    ("times", "wrong"),
    [
        ([1, 2, 4, 8], []),
        ([5, 4.5, 4.8, 5], []),  # kernels that change between sizes
        ([37, 10, 11, 12], [0]),
        ([10, 11, 2, 12, 13], [2]),
        ([1, 30, 2, 31, 3, 4], [1, 3]),
    ],
)
def test_screening_rejects_row_that_contradicts_most(times, wrong):
    rows = curve(times).sample(frac=1.0, random_state=0)
    gone = non_monotonic_rows(rows, "load", ["shape"])
    assert sorted(np.log2(rows["load"][gone])) == wrong


def test_curves_do_not_judge_each_other():
    rows = pd.concat([curve([9, 10, 11], 1), curve([1, 2, 3], 2)])
    assert not non_monotonic_rows(rows, "load", ["shape"]).any()


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=12))
def test_screening_remaining_times_do_not_fall(times):
    rows = curve(times)
    left = rows[~non_monotonic_rows(rows, "load", ["shape"])]["time_ms"].to_numpy()
    assert len(left) >= 1
    assert all(left[i] <= MAX_TIME_RATIO * left[i:].min() for i in range(len(left)))


def test_copies_are_found_and_the_smaller_table_goes():
    sizes = np.arange(40.0)
    fp8 = pd.DataFrame({"M": sizes, "time_ms": sizes + 1.0, "format": "fp8"})
    int8 = fp8.iloc[:30].assign(format="int8")
    bf16 = fp8.assign(format="bf16", time_ms=fp8["time_ms"] * 2)
    rows = pd.concat([bf16, fp8, int8], ignore_index=True)
    assert duplicated_formats(rows, rows["format"], ["M"]) == ["int8"]
    few = rows.groupby("format").head(10)
    assert duplicated_formats(few, few["format"], ["M"]) == []


def test_screening_format_far_slower_than_16_bits_takes_their_time():
    wide = [1.0, 1.0, 0.001, np.nan]
    ms = [0.6, 50.0, 0.016, 50.0]
    sizes = {"M": [1, 2, 3, 4], "K": 8}
    bf16 = pd.DataFrame({**sizes, "time_ms": wide, "format": "bf16"}).dropna()
    rows = pd.concat([bf16, pd.DataFrame({**sizes, "time_ms": ms, "format": "fp8_block"})])
    rows = rows.reset_index(drop=True)
    capped = capped_times(rows, rows["format"], ["M", "K"])
    assert capped[:3] == pytest.approx(wide[:3])
    assert capped[3:] == pytest.approx([0.6, 1.0, 0.016, 50.0])  # the last has no other to judge it
    assert ms[2] < 2 * wide[2] + QUANTIZE_MS


def test_tables_say_what_they_left_out():
    sizes = 2.0 ** np.arange(3, 14)
    rows = pd.DataFrame(
        {
            "problem.M": sizes,
            "problem.N": 1024.0,
            "problem.K": 1024.0,
            "config.format": "bf16",
            "device": "NVIDIA H100 80GB HBM3",
            "time_ms": 0.01 + sizes / 1e4,
        }
    )
    rows.loc[0, "time_ms"] = 50.0
    copies = rows.assign(**{"config.format": "int8"})
    found = MeasuredOperators("gemm", pd.concat([rows, copies], ignore_index=True), "test")
    assert (len(found.runs), found.dropped) == (20, {measured_operators.NON_MONOTONIC: 2})
    more = pd.concat([rows.assign(**{"problem.N": n}) for n in (512.0, 1024.0)])
    copies = more[more["problem.M"] > 8].assign(**{"config.format": "int8"})
    found = MeasuredOperators("gemm", pd.concat([more, copies], ignore_index=True), "test")
    assert found.keys == ["bf16"]
    assert found.dropped == {measured_operators.DUPLICATED: 20, measured_operators.NON_MONOTONIC: 2}
    # What the user measured is not judged by what others did.
    own = rows.iloc[:1].assign(source="own")
    both = pd.concat([own, rows.iloc[1:].assign(source="engine")], ignore_index=True)
    assert not MeasuredOperators("gemm", both, "test").dropped


def test_describe_rejected():
    found = [
        RejectedRows("gemm", "h100_sxm", "vllm", "too fast", 2),
        RejectedRows("gemm", "h100_sxm", "trtllm", "too fast", 1),
        RejectedRows("moe", "h100_sxm", "vllm", "copied", 1000),
    ]
    dropped = "left out of measured tables: 3 too fast (gemm 3); 1,000 copied (moe 1,000)"
    assert describe_rejected(found) == dropped
    slow = RejectedRows("gemm", "h100_sxm", "vllm", measured_operators.SLOW_FORMAT, 7)
    capped = "capped: 7 slower than in 16 bits (gemm 7)"
    assert describe_rejected([slow, *found]) == f"{dropped}; {capped}"
    assert describe_rejected([slow]) == capped
    assert describe_rejected([]) == ""
