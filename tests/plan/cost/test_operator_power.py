"""Watts of operators: a form of what they use, fitted to what most measurements say."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.datasets.importers.aiconfigurator import read
from foretune.datasets.importers.files import Request
from foretune.device import Device
from foretune.plan import find_system
from foretune.plan.cost.power import METERED_SYSTEMS, OperatorPower, PowerModel, shipped_models
from foretune.plan.cost.tables import OperatorTables
from foretune.plan.cost.times import OperatorTimer

FORM = PowerModel(compute=0.6, compute_exponent=2.0, memory=0.4, memory_exponent=1.0)
H200 = find_system("h200_sxm")
H100 = find_system("h100_sxm")
SHARES = st.floats(0.0, 1.5)


def product(m: float, n: float, k: float) -> dict[str, object]:
    return {
        "kernel": "gemm",
        "problem.M": m,
        "problem.N": n,
        "problem.K": k,
        "config.format": "bf16",
    }


def test_shares_are_those_of_the_formula():
    used = np.array([[0.5, 0.25], [0.0, 0.0], [1.0, 1.0]])
    # 0.2 + 0.6 x 0.25 + 0.4 x 0.25; awake; above the limit
    assert FORM.share(used, 0.2) == pytest.approx([0.45, 0.2, 1.0])


def test_operator_power_unknown_share_adds_nothing():
    assert FORM.share(np.array([[np.nan, 0.5]]), 0.2) == pytest.approx([0.4])


@pytest.mark.parametrize("kernel", ["gemm", "attention_prefill", "attention_decode", "moe"])
@given(computing=SHARES, memory=SHARES, more=st.floats(0.0, 1.0))
def test_operator_power_grows_with_use_up_to_limit(kernel, computing, memory, more):
    form = shipped_models()[kernel]["h200_sxm"]
    used = np.array([[computing, memory], [computing + more, memory], [computing, memory + more]])
    shares = form.share(used, 0.2)
    assert (shares[1:] >= shares[0]).all()
    assert ((shares >= 0.2) & (shares <= 1.0)).all()


def gpu(architecture: str) -> Device:
    specs = {"bf16_gflops": 1e6, "memory_gbps": 1e3, "power_limit_w": 500.0}
    return Device("small", "gpu", architecture, specs)


def test_watts_follow_from_the_roofline_and_the_limit():
    power = OperatorPower(gpu("sm_90"), "h200_sxm", {"gemm": {"h200_sxm": FORM}})
    # 2 x 1e9 operations in 2 µs at peak; 3 x 1e6 numbers of 2 bytes in 6 µs; both in 8 µs.
    answer = power.watts(pd.DataFrame([product(1000, 1000, 1000)]), np.array([8e-3]))
    awake = METERED_SYSTEMS["h200_sxm"][1]
    assert answer.watts == pytest.approx([500.0 * (awake + 0.6 * 0.25**2 + 0.4 * 0.75)])
    assert not answer.compute_bound[0]
    assert answer.measured[0]
    assert power.active_idle_w == pytest.approx(500.0 * awake)


def test_operator_power_takes_nearest_measured_gpus():
    other = PowerModel(compute=0.1, compute_exponent=1.0, memory=0.1, memory_exponent=1.0)
    forms = {"gemm": {"h200_sxm": FORM, "b200_sxm": other}}
    rows = pd.DataFrame([product(1000, 1000, 1000)])
    ms = np.array([8e-3])

    def shares(architecture: str, system: str) -> float:
        return float(OperatorPower(gpu(architecture), system, forms).watts(rows, ms).watts[0]) / 500

    used = np.array([[0.25, 0.75]])
    hopper, blackwell = (
        METERED_SYSTEMS["h200_sxm"][1],
        METERED_SYSTEMS["b200_sxm"][1],
    )
    both = (hopper + blackwell) / 2
    assert shares("sm_90", "h100_sxm") == pytest.approx(FORM.share(used, hopper)[0])
    assert shares("sm_103", "b300_sxm") == pytest.approx(other.share(used, blackwell)[0])
    expected = (FORM.share(used, both)[0] + other.share(used, both)[0]) / 2
    assert shares("sm_80", "a100_sxm") == pytest.approx(expected)


def test_more_computing_per_byte_is_bound_by_computing():
    rows = pd.DataFrame([product(8192, 8192, 8192), product(1, 8192, 8192)])
    answer = OperatorPower(H200.device, "h200_sxm").watts(rows, np.array([1.5, 0.03]))
    assert answer.compute_bound.tolist() == [True, False]
    assert answer.watts[0] > answer.watts[1] > METERED_SYSTEMS["h200_sxm"][1] * 700


def test_kernels_nobody_metered_take_another_form_and_say_so():
    rows = pd.DataFrame(
        [
            product(64, 4096, 4096),
            {
                "kernel": "norm",
                "problem.rows": 64.0,
                "problem.columns": 4096.0,
                "config.format": "bf16",
            },
        ]
    )
    here = OperatorPower(H200.device, "h200_sxm").watts(rows, np.array([0.01, 0.003]))
    elsewhere = OperatorPower(H100.device, "h100_sxm").watts(rows, np.array([0.01, 0.003]))
    assert here.measured.tolist() == [True, False]
    assert not elsewhere.measured.any()
    assert np.isfinite(here.watts).all()


def test_operator_power_without_limit_is_unknown():
    device = Device("x", "cpu", specs={"fp32_gflops": 100.0, "memory_gbps": 20.0})
    answer = OperatorPower(device).watts(pd.DataFrame([product(64, 64, 64)]), np.array([1.0]))
    assert np.isnan(answer.watts).all()


@pytest.mark.shared_data
def test_measured_powers_of_products_on_a_gpu_without_times(shared_data, tmp_path):
    """Times are those of another GPU's measurements; a constant limit is off by half and more."""
    rows = read(shared_data / "llm" / "power_h200_gemm.parquet", Request())
    rows = rows[rows["config.format"] == "bf16"].sample(2000, random_state=0, ignore_index=True)
    wanted = {"system": "h100_sxm", "backend": "vllm", "gemm_dtype": "bfloat16"}
    filters = [(name, "==", value) for name, value in wanted.items()]
    there = pd.read_parquet(shared_data / "llm" / "gemm.parquet", filters=filters)
    folder = tmp_path / "h100_sxm" / "vllm" / "1.0"
    folder.mkdir(parents=True)
    half = there[there["n"].isin(sorted(there["n"].unique())[::2])]
    half.to_parquet(folder / "gemm_perf.parquet")
    clock = OperatorTimer(H200.device, OperatorTables(tmp_path), "h200_sxm", "vllm", ["h100_sxm"])
    power = OperatorPower(H200.device, "h200_sxm")
    watts = power.watts(rows, clock.times(rows).ms).watts
    measured = rows["power_w"].to_numpy(dtype=float)
    assert np.median(np.abs(power.limit_w / measured - 1)) > 0.5
    assert np.median(np.abs(watts / measured - 1)) < 0.15
