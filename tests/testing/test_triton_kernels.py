"""The contract of every kernel in Triton, interpreted in a process of its own."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from foretune.registry import TRITON_PREFIX, registered

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

VERSIONS = [tuple(map(int, m.__version__.split(".")[:2])) for m in (triton, np)]
PROBLEMS = {
    "triton_gemm": {"M": 37, "N": 83, "K": 41},
    "triton_quantized_gemm": {"M": 5, "N": 64, "K": 128},
}
SCRIPT = """
import json, sys
from foretune.registry import get_kernel
from foretune.testing import check_kernel
for name, problem in json.loads(sys.argv[1]).items():
    check_kernel(get_kernel(name), [problem], configs=1)
"""


def test_problems_cover_all_triton_kernels():
    assert {n for n in registered("kernels") if n.startswith(TRITON_PREFIX)} == PROBLEMS.keys()


@pytest.mark.skipif(
    VERSIONS[0] < (3, 7) and VERSIONS[1] >= (2, 4),
    reason="needs a Triton whose interpreter works with this NumPy: pip install 'triton>=3.7'",
)
def test_check_kernel_triton():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", SCRIPT, json.dumps(PROBLEMS)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
