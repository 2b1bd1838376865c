"""The GPU's probe: right in the interpreter, and it compiles for GPUs that are not here."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

INTERPRETED = """
import torch
from foretune.collect import gpu_dissection as probe
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


def test_what_the_kernels_compute():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_they_compile(compiled, target):
    from foretune.collect import gpu_dissection as probe

    pointer = torch.int32
    made, _ = compiled(probe.chase, [pointer, pointer, 100], {}, target)
    assert made.asm
    made, _ = compiled(probe.read, [pointer, pointer, 8, 3], {"BLOCK": 1024}, target)
    assert made.asm
