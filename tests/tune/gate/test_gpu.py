"""Benchmarks that use a GPU, or launch Triton kernels: `agent/gpu_events.py`, `timed_call.py`.

No machine of the tests has a GPU, so torch's events and its wait for the device are replaced: they
read a clock that the benchmark's call moves on.
"""

import sys
import textwrap
from pathlib import Path

import pytest

from foretune.collect.printed_output import PrintedOutput
from foretune.tune.gate.agent_process import AgentProcess, RequestFailed
from foretune.tune.gate.environment import ROLES, Environment
from foretune.tune.gate.gate import GateOptions, run_gate
from foretune.tune.gate.session import Suite

pytest.importorskip("triton")

LIMIT_S = 120.0
KERNEL = """
import os

os.environ["TRITON_INTERPRET"] = "1"
import foretune
import torch
import triton
import triton.language as tl


@foretune.autotune(
    configs=[triton.Config({"BLOCK": b}) for b in (64, 128)], key=["n"], store=False
)
@triton.jit
def add(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 1.0, mask=i < n)


def inputs_add(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(256, generator=generator)
    return x, torch.empty_like(x)


def bench_add(x, out):
    add[lambda meta: (triton.cdiv(256, meta["BLOCK"]),)](x, out, 256)
    return out
"""
FAKE_DEVICE = """
from pathlib import Path

import torch

KERNEL_MS = float(Path("kernel_ms.txt").read_text())


class Device:
    now_ms = 0.0
    is_used = False
    is_done = True
    waits = 0


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at_ms = Device.now_ms

    def elapsed_time(self, end):
        assert Device.is_done, "events are read after the device was waited for"
        return end.at_ms - self.at_ms


def synchronize():
    Device.is_done = True
    Device.waits += 1


torch.cuda.is_initialized = lambda: Device.is_used
torch.cuda.Event = Event
torch.cuda.synchronize = synchronize
cpu_empty = torch.empty
torch.empty = lambda size, dtype, device: cpu_empty(1024, dtype=dtype)


def bench_launch():
    Device.is_used = True
    Device.is_done = False
    Device.now_ms += KERNEL_MS
    return Device.waits
"""


@pytest.fixture
def agent(tmp_path):
    """Return a function that starts an agent with one open benchmark of a file with this text."""
    processes = []

    def start(text, kernel_ms=3.0):
        (tmp_path / "bench_it.py").write_text(textwrap.dedent(text))
        (tmp_path / "kernel_ms.txt").write_text(str(kernel_ms))
        environment = Environment(Path(sys.executable), tmp_path, "here")
        process = AgentProcess(environment, 0, PrintedOutput())
        processes.append(process)
        request = {"commands": [], "imports": [], "pytest": [], "keep_freed_memory": False}
        path = str(tmp_path / "bench_it.py")
        (name,) = process.ask("load", limit_s=LIMIT_S, path=path, **request)["benchmarks"]
        process.ask("open", limit_s=LIMIT_S, name=name)
        return process

    yield start
    for process in processes:
        process.end()


def test_triton_kernel_that_tunes_itself_runs_interpreted(agent):
    process = agent(KERNEL)
    turn = process.ask("turn", limit_s=LIMIT_S, calls=1, bursts=2, seed=1)
    assert min(turn["wall_ns"]) > 0
    array = process.ask("output", limit_s=LIMIT_S, seed=1)["output"]
    assert array != process.ask("output", limit_s=LIMIT_S, seed=2)["output"]
    with pytest.raises(RequestFailed, match="NoGpuUsed: it uses no GPU through torch"):
        process.ask("gpu", limit_s=LIMIT_S, calls=1, seed=1)


def test_first_burst_that_uses_a_gpu_waits_for_it(agent):
    process = agent(FAKE_DEVICE)
    turn = process.ask("turn", limit_s=LIMIT_S, calls=2, bursts=2, seed=1)
    assert turn["cpu_ns"] == [None, None], "the CPU's time is not that of the GPU"
    # After the first burst, and before and after the second.
    assert process.ask("output", limit_s=LIMIT_S, seed=1)["output"] == {"plain": 3}


def test_time_on_the_gpu_is_that_of_its_events(agent):
    process = agent(FAKE_DEVICE, kernel_ms=0.25)
    process.ask("turn", limit_s=LIMIT_S, calls=1, bursts=1, seed=1)
    assert process.ask("gpu", limit_s=LIMIT_S, calls=3, seed=1)["gpu_ns"] == [250_000] * 3


def test_gate_metric_gpu_finds_a_slower_kernel_behind_equal_launches(tmp_path):
    (tmp_path / "bench_it.py").write_text(FAKE_DEVICE)
    environments = {}
    for role in ROLES:
        folder = tmp_path / role
        folder.mkdir()
        (folder / "kernel_ms.txt").write_text("0.0103" if role == "head" else "0.01")
        environments[role] = Environment(Path(sys.executable), folder, role)
    suite = Suite(dict.fromkeys(ROLES, str(tmp_path / "bench_it.py")))
    options = GateOptions(budget_s=1.0, looks={3: 1.0}, metrics=("gpu",))
    (verdict,) = run_gate(environments, suite, options).verdicts
    assert (verdict.word, verdict.metric) == ("slower", "gpu")
    assert verdict.change == pytest.approx(0.03, rel=1e-3)
