"""A measuring process keeps the memory that is freed."""

import os
import subprocess
import sys

import pytest

from foretune.collect.worker_environment import WORKER_VARIABLE, is_worker

FAULTS = """
import resource
import numpy as np
from foretune.collect.worker_environment import keep_freed_memory

assert keep_freed_memory()
def temporaries(n):
    for _ in range(4):
        a = np.ones(n) + 1.0
np.ones(100_000)
temporaries({warm})
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    temporaries({then})
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has this setting")
@pytest.mark.parametrize(("warm", "then"), [(30_000, 27_000), (8_000_000, 7_000_000)])
def test_worker_environment_smaller_temporaries_cost_no_faults(warm, then):
    code = FAULTS.format(warm=warm, then=then)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pages = 20 * 4 * 8 * then // 4096
    assert int(found.stdout) < pages / 20, "memory is reused"


def test_worker_environment_is_marked(monkeypatch):
    monkeypatch.delenv(WORKER_VARIABLE, raising=False)
    assert not is_worker()
    monkeypatch.setitem(os.environ, WORKER_VARIABLE, "1")
    assert is_worker()
