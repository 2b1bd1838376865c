"""Kernels that probe a GPU's memory: what they compute in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
INTERPRETED = """
import torch
from machine_probe import gpu_dissection as probe
from foretune.collect.timing import CPU_TIMER

memory = torch.zeros(4096, dtype=torch.int32)
start = probe.link(memory, 4)
position, seen = start.clone(), set()
for _ in range(64):
    probe.chase[(1,)](memory, position, 1)
    seen.add(int(position))
assert int(position) == int(start) and seen == set(range(0, 1024, 16)), seen
sums = torch.zeros(2 * probe.BLOCK, dtype=torch.int32)
probe.read[(2,)](torch.ones(4096, dtype=torch.int32), sums, 4, 3, probe.BLOCK)
assert int(sums.sum()) == 3 * 4096
assert probe.latency_ns(memory, 4, CPU_TIMER, steps=8) > 0
probe.READS = 1
assert probe.read_gbps(memory, 4, 2, CPU_TIMER) > 0
"""


def test_gpu_dissection_interpreted_kernels_chase_and_read():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(BENCHMARKS)}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
