"""Steps, latencies and their correction: `plan/serve/deployments/analytic.py`."""

import numpy as np
import pandas as pd
import pytest

from foretune.plan import Formats, Layout, Workload, find_system
from foretune.plan.cost.operator import Part
from foretune.plan.cost.steps import PARTS, Step, StepTimer, StepTimerFactory, operator_table
from foretune.plan.cost.times import OperatorTimer
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.correction import TARGETS, LatencyPredictor
from foretune.plan.serve.deployments.deployment import Deployment, Pools
from foretune.plan.serve.deployments.latency_formulas import (
    formula_latencies,
    memory_wait_ms,
    tokens_per_s,
)

H100 = find_system("h100_sxm")
CLOCKS = StepTimerFactory(None)


def deploy(model, concurrency=8.0, tp=1, isl=512, osl=64, backend="vllm", **more) -> Deployment:
    return Deployment(
        model, H100, backend, Layout(tp), Formats(), Workload(isl, osl), concurrency, **more
    )


def test_step_times_are_sum_of_operators(small):
    step = Step(small, Layout(2), Formats(), Part(4, 1, 100, "decode"))
    operators = step.operators()
    clock = OperatorTimer(H100.device, None, "h100_sxm")
    each = clock.times(operator_table(operators)).ms
    times = StepTimer(clock).times([step])
    expected = sum(op.count * ms for op, ms in zip(operators, each, strict=True))
    assert times["total"][0] == pytest.approx(expected)
    assert times[list(PARTS)].sum(axis=1)[0] == pytest.approx(expected)
    assert times["communication"][0] > 0
    assert times["guessed"][0] == pytest.approx(1.0)


def test_analytic_times_do_not_depend_on_earlier_calls(small, sparse):
    steps = [
        Step(m, Layout(), Formats(), Part(b, 1, 64, "decode"))
        for m in (small, sparse)
        for b in (1, 9)
    ]
    clock = StepTimer(OperatorTimer(H100.device, None, "h100_sxm"))
    first = clock.times(steps[:1])
    together = clock.times(steps)
    alone = [StepTimer(OperatorTimer(H100.device, None, "h100_sxm")).times([s]) for s in steps]
    assert together["total"].tolist() == pytest.approx([float(t["total"][0]) for t in alone])
    assert first["total"][0] == together["total"][0]


def test_analytic_times_memory_limits_running_requests(small):
    fits = deploy(small, concurrency=16)
    assert fits.running == 16
    crowded = deploy(small, concurrency=1e9)
    assert crowded.running == crowded.max_batch < 1e9
    rows = analytic_times([fits, crowded], CLOCKS)
    wait = memory_wait_ms(rows, np.ones(2))
    assert wait[0] == 0
    assert wait[1] == pytest.approx((1e9 / crowded.max_batch - 1) * 64)


def test_analytic_times_separate_pools(small):
    pooled = deploy(small, concurrency=32, pools=Pools(Layout(2), 3, decode_workers=4))
    assert pooled.batch == 8
    rows = analytic_times([pooled, deploy(small)], CLOCKS)
    assert rows["apart"].tolist() == [1, 0]
    assert rows["prompt"][0] != rows["prompt"][1]  # on two ranks


def test_tokens_per_s_follows_from_latencies():
    latencies = pd.DataFrame({"tpot_ms": [10.0], "ttft_ms": [100.0]})
    # 8 requests of 100 + 99 x 10 = 1090 ms, 100 tokens each
    found = tokens_per_s(np.array([8.0]), np.array([100.0]), latencies)
    assert found[0] == pytest.approx(8 * 100 / 1.090)


@pytest.fixture
def measured(small, sparse):
    """Deployments of which those on two ranks are much slower than the physics says."""
    rng = np.random.default_rng(0)
    deployments = [
        deploy(model, float(c), tp, isl, 64, backend)
        for model in (small, sparse)
        for c in (1, 4, 16, 64, 256)
        for tp in (1, 2)
        for isl in (64, 512)
        for backend in ("vllm", "sglang")
    ]
    rows = analytic_times(deployments, CLOCKS)
    slower = np.where(rows["tp"] == 2, 1.8, 1.0)
    tpot = np.maximum(rows["decode"], rows["cpu"]) * slower * np.exp(rng.normal(0, 0.03, len(rows)))
    ttft = (20.0 + rows["prompt"] * 2 + 0.1 * rows["running"] * rows["prefill"]) * slower
    measured = pd.DataFrame(
        {"tpot_ms": tpot, "ttft_ms": ttft * np.exp(rng.normal(0, 0.1, len(rows)))}
    )
    groups = pd.factorize(rows["model"] + rows["layout"] + rows["use"])[0]
    return rows, measured, groups


def test_correction_learns_errors_of_formulas(measured):
    rows, times, groups = measured
    out = np.arange(len(rows)) % 4 == 0
    fitted = LatencyPredictor().fit(rows[~out], times[~out], groups[~out])
    answer = fitted.predict(rows[out])
    formulas = formula_latencies(rows[out])
    for target in TARGETS:
        error = np.abs(answer[target] / times[target][out] - 1)
        before = np.abs(formulas[target] / times[target][out] - 1)
        assert error.median() < 0.85 * before.median()
        assert error.median() < 0.2
        assert (answer[f"{target}_low"] < answer[target]).all()
        assert (answer[f"{target}_high"] > answer[target]).all()


def test_correction_unknown_model_has_wider_interval(measured):
    rows, times, _ = measured
    fitted = LatencyPredictor().fit_processes(rows, times)
    stranger = rows.assign(model="other", system="other", layout="other", formats="other")
    for target in TARGETS:
        spreads = [fitted.predict_mean(r)[1][target].median() for r in (stranger, rows)]
        assert spreads[0] > 1.2 * spreads[1]
