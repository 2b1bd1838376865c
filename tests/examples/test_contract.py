"""The contract of the example kernels in Triton, interpreted in a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

FOLDER = Path(__file__).parents[2] / "examples" / "kernels"
VERSIONS = [tuple(map(int, m.__version__.split(".")[:2])) for m in (triton, np)]
PROBLEMS = {
    "triton_softmax.py:TritonSoftmax": {"R": 5, "C": 37},
    "triton_norm.py:TritonNorm": {"R": 5, "C": 37},
    "triton_attention.py:TritonAttention": {"seq_len": 37, "heads": 2, "kv_heads": 1},
    "triton_attention_tma.py:TritonAttentionTma": {"seq_len": 37, "heads": 2, "kv_heads": 1},
    "triton_gemm_tma.py:TritonGemmTma": {"M": 37, "N": 88, "K": 48},
    "triton_grouped_gemm.py:TritonGroupedGemm": {
        "tokens": 7,
        "experts": 3,
        "top_k": 2,
        "N": 35,
        "K": 33,
    },
}
SCRIPT = """
import json, sys
from foretune.registry import get_kernel
from foretune.testing import check_kernel
for location, problem in json.loads(sys.argv[1]).items():
    check_kernel(get_kernel(location), [problem], configs=1)
"""


@pytest.mark.skipif(
    VERSIONS[0] < (3, 7) and VERSIONS[1] >= (2, 4),
    reason="needs a Triton whose interpreter works with this NumPy: pip install 'triton>=3.7'",
)
def test_example_kernel_fulfils_contract():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    problems = {str(FOLDER / location): problem for location, problem in PROBLEMS.items()}
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", SCRIPT, json.dumps(problems)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
