"""Energy of steps: what each operator draws times how long it runs."""

import numpy as np
import pytest

from foretune.device import Device
from foretune.plan import Formats, Layout, find_system
from foretune.plan.cost.operator import Part
from foretune.plan.cost.power import OperatorPower
from foretune.plan.cost.steps import Step, StepTimer, operator_table
from foretune.plan.cost.times import OperatorTimer


def clock(name: str) -> OperatorTimer:
    return OperatorTimer(find_system(name).device, None, name)


def decode(model, batch: int = 4) -> Step:
    return Step(model, Layout(2), Formats(), Part(batch, 1, 100, "decode"))


def test_energy_is_power_times_time(small):
    step = decode(small)
    times = clock("h200_sxm")
    operators = step.operators()
    table = operator_table(operators)
    ms = times.times(table).ms
    drawn = OperatorPower(times.device, "h200_sxm").watts(table, ms)
    spent = np.array([op.count for op in operators]) * ms * drawn.watts
    answer = StepTimer(times).times([step]).iloc[0]
    assert answer["energy_mj"] == pytest.approx(spent.sum())
    assert answer["energy_guessed"] == pytest.approx(spent[~drawn.measured].sum() / spent.sum())
    assert 0.0 < answer["energy_guessed"] < 1.0  # norms and exchanges were not metered


def test_step_power_unknown_on_unmetered_system(small):
    answer = StepTimer(clock("h100_sxm")).times([decode(small)]).iloc[0]
    assert answer["energy_guessed"] == pytest.approx(1.0)
    assert answer["energy_mj"] > 0


def test_step_power_lies_between_awake_and_limit(small, sparse):
    steps = [decode(m, b) for m in (small, sparse) for b in (1, 256)]
    answer = StepTimer(clock("h200_sxm")).times(steps)
    watts = answer["energy_mj"] / answer["total"]
    assert (watts > OperatorPower(find_system("h200_sxm").device, "h200_sxm").active_idle_w).all()
    assert (watts < 700.0).all()


def test_step_times_without_power_limit(small):
    device = Device("x", "cpu", specs={"bf16_gflops": 100.0, "memory_gbps": 20.0})
    answer = StepTimer(OperatorTimer(device, None, "x")).times([decode(small)]).iloc[0]
    assert answer["total"] > 0
    assert np.isnan(answer["energy_mj"])


def test_long_prompts_are_bound_by_computing_and_single_tokens_by_memory(small):
    steps = [
        Step(small, Layout(), Formats(), Part(64, 4096, 0, "prefill")),
        Step(small, Layout(), Formats(), Part(1, 1, 100, "decode")),
    ]
    bound = StepTimer(clock("h200_sxm")).times(steps)["compute_bound"]
    assert 0.0 <= bound[1] < bound[0] <= 1.0
