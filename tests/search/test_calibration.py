"""The surrogate's 90 % intervals on recorded spaces, a small one of most kernels.

As in `benchmarks/calibration.py`, an interval is read before the measurement that it predicts.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MIN_COVERAGE = 0.80
MAX_COVERAGE = 0.95
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
def test_surrogate_intervals_cover_the_next_measurement(calibration, shared_data):
    folder = shared_data / "spaces"
    tables = sorted(folder.glob("*.parquet"), key=lambda p: (-p.stat().st_size, p.name))
    small = [p.stem for p in tables if p.stat().st_size < MAX_BYTES]
    one_of_each = {name.partition("__")[0]: name for name in small}
    spaces = calibration.complete_spaces(folder, ",".join(one_of_each.values()))
    errors: list[float] = []
    for space in spaces:
        errors += calibration.standardized_errors(space, budget=32, seed=0)
    assert len(errors) > 300
    coverage = np.mean(np.abs(errors) <= calibration.HALF_WIDTH_90)
    assert MIN_COVERAGE <= coverage <= MAX_COVERAGE
