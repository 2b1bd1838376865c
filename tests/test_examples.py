"""The examples run, and check their own results; interpreted where there is no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

EXAMPLES = Path(__file__).parents[1] / "examples"
VERSIONS = [tuple(map(int, m.__version__.split(".")[:2])) for m in (triton, np)]
pytestmark = pytest.mark.skipif(
    VERSIONS[0] < (3, 7) and VERSIONS[1] >= (2, 4),
    reason="the interpreter of Triton 3.6 cannot count loops with NumPy 2.4",
)


@pytest.mark.parametrize(("name", "size"), [("gemm", "50"), ("attention", "70")])
def test_an_example_finds_a_configuration_and_the_right_result(name, size, tmp_path):
    environment = {
        **os.environ,
        "FORETUNE_STORE": str(tmp_path / "tuned.db"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(
        [sys.executable, "-P", str(EXAMPLES / f"{name}.py"), size],
        capture_output=True, text=True, env=environment, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    device, header, row = run.stdout.splitlines()
    assert device == "interpreted on the CPU"
    assert "BLOCK_M × BLOCK_N" in header
    assert row.split()[0] == size
    assert "warps" in row
