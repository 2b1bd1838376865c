"""The law of products on GPUs without engines' tables."""

import numpy as np
import pandas as pd
import pytest

from foretune.device import find_device
from foretune.plan.cost.operator import gemm
from foretune.plan.cost.product_law import ProductLaw, has_law, law_ms, law_of
from foretune.plan.cost.steps import operator_table
from foretune.plan.cost.times import SIMILAR_FORMATS, OperatorTimer

LAW = ProductLaw(launch_ms=0.01, memory_share=0.5, compute_share=0.5, ramp=0.0, depth_ms=0.001)


def test_product_law_adds_launch_depth_and_limits():
    ms = LAW.ms(np.array([[3.0, 4.0]]), tiles=np.array([1.0]), depth=np.array([2000.0]), cores=1.0)

    # hypot(3 / 0.5, 4 / 0.5) = 10
    assert ms == pytest.approx(0.01 + 0.002 + 10.0)


def test_law_of_format_without_law_takes_similar_format_of_its_architecture():
    assert law_of("gfx942", "fp8", SIMILAR_FORMATS) == law_of(
        "gfx942", "fp8_block", SIMILAR_FORMATS
    )
    assert law_of("gfx942", "fp8", SIMILAR_FORMATS) != law_of("gfx950", "fp8", SIMILAR_FORMATS)


def test_has_law_only_for_amd_instinct():
    assert has_law(find_device("MI325X"))
    assert not has_law(find_device("NVIDIA H100 80GB HBM3"))


@pytest.mark.parametrize(
    ("number_format", "factor"), [("w4a16_mxfp4", (3072 / 2880) ** 2), ("bf16", 1)]
)
def test_law_ms_pads_experts_in_mxfp4(number_format, factor):
    rows = pd.DataFrame(
        {
            "problem.tokens": [64.0],
            "problem.hidden": [2880.0],
            "problem.intermediate": [2880.0],
            "problem.experts": [128.0],
            "problem.top_k": [4.0],
            "problem.distribution": ["balanced"],
            "config.tp": [1.0],
            "config.ep": [1.0],
            "config.format": [number_format],
        }
    )
    device = find_device("MI300X")
    nothing, something = (
        law_ms("moe", rows, np.array([[0.0, ms]]), device, SIMILAR_FORMATS) for ms in (0.0, 1.0)
    )

    law = law_of("gfx942", number_format, SIMILAR_FORMATS)
    assert something - nothing == pytest.approx(factor / law.memory_share)


def test_operator_timer_takes_law_where_no_table_is():
    table = operator_table(
        [gemm("x", phase="prefill", count=1, m=4096, n=4096, k=4096, kind="fp8")]
    )
    amd = OperatorTimer(find_device("MI300X"), None, "mi300x").times(table)
    nvidia = OperatorTimer(find_device("NVIDIA H100 80GB HBM3"), None, "h100_sxm").times(table)

    assert amd.source[0] == "predicted"
    assert nvidia.source[0] == "roofline"
    # Above the roofline at a third of the peak rate, which is what its kernels reach.
    assert amd.ms[0] > amd.bound_ms[0] / 0.35
