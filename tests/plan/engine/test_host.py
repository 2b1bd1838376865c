"""CPU time of an engine's own code: `plan/engine/host.py`."""

import pytest

from foretune.device import Device
from foretune.plan import System, find_system
from foretune.plan.engine.host import CPU_ENGINE_MS, Host

CPU = Device("toy CPU", "cpu", architecture="x86_64", specs={"cores": 2, "memory_gib": 8})


def test_step_time_host_of_a_cpu_adds_to_the_model():
    host = Host.for_system(System.from_device(CPU))
    step_ms = host.step_time_ms(10.0, requests=3, tokens=0, active=3, launched=0, prompts=2)
    own_ms = CPU_ENGINE_MS["step_ms"] + 3 * CPU_ENGINE_MS["request_ms"]
    received_ms = 2 * CPU_ENGINE_MS["prompt_ms"]
    assert step_ms == pytest.approx(10.0 + own_ms + received_ms)


def test_step_time_host_of_a_gpu_overlaps_and_receives_elsewhere():
    host = Host.for_system(find_system("h100_sxm"))
    alone = host.step_time_ms(10.0, requests=3, tokens=0, active=3, launched=0)
    with_prompts = host.step_time_ms(10.0, requests=3, tokens=0, active=3, launched=0, prompts=9)
    assert alone == with_prompts == 10.0
