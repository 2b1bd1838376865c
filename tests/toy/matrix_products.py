"""Runs of matrix products on GPUs, with times that follow a law."""

import numpy as np
import pandas as pd

from foretune.device import find_device

HERE = "NVIDIA H100 80GB HBM3"
THERE = "NVIDIA L40S"


def products(device, n, seed, factor=1.0):
    """Runs of matrix products whose times follow a law on ``device``."""
    rng = np.random.default_rng(seed)
    sizes = {f"problem.{axis}": 2.0 ** rng.integers(5, 13, n) for axis in "MNK"}
    specs = find_device(device).specs
    runs = pd.DataFrame(sizes | {f"device.{k}": v for k, v in specs.items()})
    flops = 2.0 * runs["problem.M"] * runs["problem.N"] * runs["problem.K"]
    runs["time_ms"] = factor * (0.004 + flops / specs["fp16_gflops"] / 1e6)
    return runs.assign(
        kernel="gemm", device=device, status="ok", **{"config.format": "fp16", "config.way": "a"}
    )
