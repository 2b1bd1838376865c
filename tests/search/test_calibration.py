"""Whether the surrogate knows how sure it is, on a small recorded space of most kernels.

The intervals are those of `benchmarks/calibration.py`: of every measurement that the process
proposed, before it was made.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LEAST, MOST = 0.80, 0.95
MAX_BYTES = 150_000
"""Of a table: reading a larger one takes seconds."""


@pytest.fixture
def calibration(monkeypatch):
    if not BENCHMARKS.is_dir():
        pytest.skip("needs the benchmarks of a checkout")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield pytest.importorskip("calibration")
    for name in ("calibration", "machine", "spaces"):
        sys.modules.pop(name, None)


@pytest.mark.shared_data
def test_intervals_of_the_next_measurement_hold(calibration, shared_data):
    folder = shared_data / "spaces"
    tables = sorted(folder.glob("*.parquet"), key=lambda p: (-p.stat().st_size, p.name))
    small = [p.stem for p in tables if p.stat().st_size < MAX_BYTES]
    one_of_each = {name.partition("__")[0]: name for name in small}
    spaces = calibration.complete_spaces(folder, ",".join(one_of_each.values()))
    z = [error for space in spaces for error in calibration.errors(space, budget=32, seed=0)]
    assert len(z) > 300
    assert LEAST <= np.mean(np.abs(z) <= calibration.NINETY) <= MOST
