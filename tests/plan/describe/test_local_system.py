"""This machine as a system to deploy on."""

from dataclasses import replace

from foretune.device import MEASURED_WHILE, Device
from foretune.plan import find_system, read_prices
from foretune.plan.describe import catalog as module
from foretune.plan.describe.catalog import resolve_system

CPU = Device("A CPU", "cpu", "x86_64", {"fp32_gflops": 100.0, "memory_gbps": 10.0})


def test_local_is_this_machine(monkeypatch, tmp_path):
    h100 = Device("NVIDIA H100 80GB HBM3", "gpu", "sm_90")
    other = Device("NVIDIA Other 9", "gpu", "sm_99", {"memory_gib": 10.0})
    monkeypatch.setattr(module, "local_gpus", lambda: [h100])
    assert resolve_system("local").name == "h100_sxm"
    monkeypatch.setattr(module, "local_gpus", lambda: [other, other, h100])
    found = resolve_system("local")
    assert (found.name, found.gpus_per_node, found.memory_gib) == ("NVIDIA Other 9", 2, 9.9)
    monkeypatch.setattr(module, "local_gpus", list)
    monkeypatch.setattr(module, "local_device", lambda name: CPU)
    assert resolve_system("Local").device is CPU
    assert resolve_system("h200_sxm") == find_system("h200_sxm")
    (tmp_path / "prices.csv").write_text("system,usd_per_gpu_hour\nlocal,0.1\n")
    assert resolve_system("local", read_prices(tmp_path / "prices.csv")).price_per_hour == 0.1


def test_rates_of_a_busy_cpu_are_named(monkeypatch):
    busy = f"rates measured (probe 3){MEASURED_WHILE}other processes kept the CPU busy"
    cpu = Device("toy CPU", "cpu", "x86_64", {"memory_gib": 8, "fp32_gflops": 9}, source=busy)
    monkeypatch.setattr(module, "local_gpus", list)
    monkeypatch.setattr(module, "local_device", lambda name: cpu)
    system = resolve_system("local")
    assert "measured while other processes kept the CPU busy" in system.assumptions

    quiet = replace(cpu, source=busy.partition(MEASURED_WHILE)[0])
    monkeypatch.setattr(module, "local_device", lambda name: quiet)
    assert resolve_system("local").assumptions == ""
