"""Tests that the Triton examples run, interpreted, and check their own results."""

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


@pytest.mark.parametrize(
    ("name", "size"), [("gemm", "50"), pytest.param("attention", "70", marks=pytest.mark.extended)]
)
def test_triton_example_finds_configuration_and_stores_it(name, size, tmp_path):
    device, header, row = example(name, size, tmp_path)
    assert device == "interpreted on the CPU"
    assert "BLOCK_M × BLOCK_N" in header
    assert row.split()[0] == size
    assert "warps" in row
    assert int(row.split()[1].partition("/")[0]) > 0
    *_, again = example(name, size, tmp_path)
    assert again.split()[1].startswith("0/"), "the store remembers, and nothing is measured"


@pytest.mark.parametrize("name", ["gemm", pytest.param("attention", marks=pytest.mark.extended)])
def test_triton_example_help_has_usage(name, tmp_path):
    assert example(name, "--help", tmp_path)[0].startswith(f"usage: {name}.py [-h]")


def example(name, argument, folder):
    """Run an example; return its lines."""
    environment = {
        **os.environ,
        "FORETUNE_STORE": str(folder / "tuned.db"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(
        [sys.executable, "-P", str(EXAMPLES / f"{name}.py"), argument],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()
