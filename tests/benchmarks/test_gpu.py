"""The smallest replayed sweep of benchmarks/gpu; tests/test_gpu_stages.py has the rest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from foretune.datasets import read_runs

ROOT = Path(__file__).parents[2]
SWEEP = [
    "--problems",
    "1",
    "--per-problem",
    "2",
    "--listed",
    "1",
    "--blocks",
    "1",
    "--compilers",
    "1",
    "--kernels",
    "triton_softmax",
]


def test_a_replayed_sweep_measures(tmp_path):
    pytest.importorskip("triton")
    command = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "gpu" / "sweep.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, "--out", str(tmp_path), "--replay", *SWEEP], env=environment, check=True
    )
    runs = read_runs(tmp_path / "sweep.parquet")
    assert len(runs) == 4
    assert (runs["status"] == "ok").all(), runs["error"].tolist()
