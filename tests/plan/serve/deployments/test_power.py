"""Power and energy of deployments: `plan/serve/deployments/power.py`."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.plan.serve.deployments.power import UNMODELED_ACTIVE_SHARE, deployment_power


def row(**changed: float) -> pd.DataFrame:
    """One replica of two ranks, eight requests of 100 tokens each in flight.

    A step takes 10 ms and 4 J on each GPU, a prompt 50 ms and 30 J.
    """
    values = {
        "decode": 10.0,
        "decode_energy_mj": 4000.0,
        "prefill": 50.0,
        "prefill_energy_mj": 30000.0,
        "running": 8.0,
        "concurrency": 8.0,
        "osl": 100.0,
        "speculative": 0.0,
        "tp": 2.0,
        "pp": 1.0,
        "prefill_tp": 2.0,
        "gpus": 2.0,
        "awake_w": 150.0,
    }
    return pd.DataFrame([values | changed])


def latency(tpot_ms: float, ttft_ms: float = 100.0) -> pd.DataFrame:
    return pd.DataFrame({"tpot_ms": [tpot_ms], "ttft_ms": [ttft_ms]})


def test_deployment_power_counts_work_and_waits():
    answer = deployment_power(row(), latency(20.0, 20.0)).iloc[0]
    # 8 x 100 tokens in 2 s: of every 20 ms a step takes 10 and 8/100 prompts take 4.
    waits = (1 - UNMODELED_ACTIVE_SHARE) * 6
    works_w = (4000 + 2400) / 14
    assert answer["power_w"] == pytest.approx(((20 - waits) * works_w + waits * 150) / 20)
    assert answer["decode_power_w"] == pytest.approx(400.0)
    assert answer["prefill_power_w"] == pytest.approx(600.0)
    assert answer["prefill_share"] == pytest.approx(4 / 14)
    # Two GPUs, 400 tokens per second.
    assert answer["energy_mj_per_token"] == pytest.approx(answer["power_w"] * 2 / 400 * 1e3)


def test_deployment_power_busy_share_is_at_most_one():
    answer = deployment_power(row(), latency(7.0, 7.0)).iloc[0]
    assert answer["power_w"] == pytest.approx((4000 + 2400) / 14)


def test_deployment_power_stages_have_own_batches():
    one = deployment_power(row(), latency(20.0, 20.0)).iloc[0]
    two = deployment_power(row(pp=2.0, gpus=4.0), latency(20.0, 20.0)).iloc[0]
    assert two["power_w"] == pytest.approx(one["power_w"])


def test_deployment_power_single_request_is_in_one_stage():
    single = {"running": 1.0, "concurrency": 1.0}
    one = deployment_power(row(**single), latency(20.0, 20.0)).iloc[0]
    two = deployment_power(row(pp=2.0, gpus=4.0, **single), latency(20.0, 20.0)).iloc[0]
    assert two["power_w"] == pytest.approx((one["power_w"] + 150.0) / 2)


def test_deployment_power_drafted_tokens_share_energy():
    plain, drafted = (
        deployment_power(row(speculative=s, prefill_energy_mj=0.0, prefill=0.0), latency(1.0, 1.0))
        for s in (0.0, 1.0)
    )
    assert drafted["power_w"][0] == pytest.approx(plain["power_w"][0])
    waiting = deployment_power(row(prefill=0.0, prefill_energy_mj=0.0), latency(1e9)).iloc[0]
    assert waiting["power_w"] == pytest.approx(
        UNMODELED_ACTIVE_SHARE * 400 + (1 - UNMODELED_ACTIVE_SHARE) * 150, rel=1e-3
    )


def test_deployment_power_counts_gpus_of_both_pools():
    # Two workers of two GPUs write, one GPU reads prompts: 16 requests, 800 tokens per second.
    pools = row(gpus=5.0, concurrency=16.0, prefill_tp=1.0)
    answer = deployment_power(pools, latency(20.0, 20.0)).iloc[0]
    writing = 4 * 10 / 20
    reading = 800 / 100 * 0.050
    works_w = (writing * 400 + reading * 600) / (writing + reading)
    waits = (1 - UNMODELED_ACTIVE_SHARE) * (5 - writing - reading)
    assert answer["power_w"] == pytest.approx(((5 - waits) * works_w + waits * 150) / 5)


@given(
    tpot=st.floats(1.0, 1e4),
    ttft=st.floats(1.0, 1e5),
    running=st.floats(1.0, 500.0),
    osl=st.floats(1.0, 1e4),
)
def test_deployment_power_is_between_idle_and_operators(tpot, ttft, running, osl):
    rows = row(running=running, concurrency=running, osl=osl)
    answer = deployment_power(rows, latency(tpot, ttft)).iloc[0]
    assert 150.0 - 1e-6 <= answer["power_w"] <= 600.0 + 1e-6
