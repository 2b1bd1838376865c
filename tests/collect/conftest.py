"""What tests of measuring processes share."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def isolated(monkeypatch):
    """Measure in another process, which finds the kernels of tests."""
    from toy_kernel import DEVICE

    from foretune.collect import IsolatedRunner, Timing

    toy = str(Path(__file__).parents[1] / "toy")
    path = [toy, *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    with IsolatedRunner(DEVICE, Timing(max_seconds=0.03, warmup_s=0.002), limit_s=20) as runner:
        yield runner
