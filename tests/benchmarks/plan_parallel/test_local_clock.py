"""The planner's clock over operators measured here."""

import numpy as np
import pandas as pd
import pytest
from plan_parallel.grid import FORMAT, LOCAL_DEVICE, Grid
from plan_parallel.local_clock import LocalTables, rank_device, rank_timers
from plan_parallel.parallel import small_model

from foretune.plan import Formats, Layout
from foretune.plan.cost.decoder import mixed_operators
from foretune.plan.cost.operator import Part
from foretune.plan.cost.steps import operator_table

GFLOPS = 50.0
GBPS = 10.0
HOP_MS = 0.05


def row(kernel, problem, busy):
    """Return a measurement of a machine of fixed rates, half as fast if all compute."""
    slower = 2.0 if busy == "together" else 1.0
    if kernel == "gemm":
        m, n, k = (problem[name] for name in "MNK")
        ms = max(2 * m * n * k / GFLOPS, 4 * (m * k + n * k + m * n) / GBPS) * 1e-6
    elif "message_bytes" in problem:
        ms = HOP_MS + problem["message_bytes"] / GBPS * 1e-6
        slower = 1.0
    else:
        ms = 0.01
    columns = {f"problem.{name}": value for name, value in problem.items()}
    formats = {"config.format": FORMAT, "config.kv_format": "bf16", "config.backend": busy}
    return {
        "kernel": kernel,
        "device": LOCAL_DEVICE,
        "status": "ok",
        **columns,
        **formats,
        "time_ms": ms * slower,
    }


@pytest.fixture(scope="module")
def runs():
    grid = Grid(widths=(128, 512, 2048))
    rows = [row(k, p, busy) for busy in ("alone", "together") for k, p in grid.operators()]
    rows += [
        row(kernel, problem, "together")
        for kernel in ("all_reduce", "all_gather", "send_recv")
        for problem in grid.exchanges(2)
    ]
    return pd.DataFrame(rows)


def test_a_rank_is_as_fast_as_its_best_operator(runs):
    specs = rank_device(runs).specs
    assert specs["fp32_gflops"] == pytest.approx(GFLOPS)
    assert specs["memory_gbps"] == pytest.approx(GBPS)


def test_tables_keep_alone_and_together_apart(runs):
    tables = LocalTables(runs)
    alone, together = (tables.rows("gemm", LOCAL_DEVICE, busy) for busy in ("alone", "together"))
    assert together["time_ms"].to_numpy() == pytest.approx(2 * alone["time_ms"].to_numpy())
    assert "problem.heads" not in alone
    assert tables.rows("moe", LOCAL_DEVICE, "alone") is None
    # An exchange takes all ranks, whoever asks.
    for busy in ("alone", "together"):
        assert len(tables.rows("send_recv", LOCAL_DEVICE, busy)) == len(Grid().message_kib)


def test_sizes_between_are_predicted(runs):
    clocks = rank_timers(runs)
    operators = mixed_operators(
        small_model(768, 2, 4, 1200), Layout(2), Formats(), [Part(6, 1, 100, "decode")]
    )
    table = operator_table(operators)
    times = {busy: clock.times(table) for busy, clock in clocks.items()}
    for i, operator in enumerate(operators):
        if operator.kernel == "gemm":
            expected = row("gemm", operator.problem, "alone")["time_ms"]
            assert times["alone"].ms[i] == pytest.approx(expected, rel=0.2)
            assert times["together"].ms[i] == pytest.approx(2 * expected, rel=0.2)
        if operator.kernel == "all_reduce":  # of twice the planner's bytes
            size = 2 * operator.problem["message_bytes"]
            expected = row("all_reduce", {"message_bytes": size}, "together")["time_ms"]
            assert times["together"].ms[i] == pytest.approx(expected, rel=0.2)
    assert not np.isin(times["alone"].source, ["roofline"]).any()
