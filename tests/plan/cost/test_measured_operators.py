"""Measured operators beyond their tables."""

import numpy as np
import pandas as pd

from foretune.plan.cost.kinds import with_expert_kind
from foretune.plan.cost.measured_operators import MeasuredOperators

KEY = "bf16/bf16"


def measured():
    batches, lengths = np.meshgrid(2.0 ** np.arange(7), 2.0 ** np.arange(4, 13))
    rows = pd.DataFrame(
        {
            "problem.batch": batches.ravel(),
            "problem.kv_len": lengths.ravel(),
            "problem.heads": 32.0,
            "problem.kv_heads": 8.0,
            "problem.head_dim": 128.0,
            "config.format": "bf16",
            "config.kv_format": "bf16",
            "device": "some GPU",
            "time_ms": 0.01 + 1e-5 * (batches * lengths).ravel(),
        }
    )
    return MeasuredOperators("attention_decode", rows, "some")


def test_attention_of_more_requests_is_read_in_parts():
    asked = pd.DataFrame(
        {
            "problem.batch": [8.0, 64.0, 100.0, 256.0],
            "problem.kv_len": 1024.0,
            "problem.heads": 32.0,
            "problem.kv_heads": 8.0,
        }
    )
    table = measured()
    rows, parts = table._split_large(KEY, asked)
    assert parts.tolist() == [1, 1, 1, 4]
    assert rows["problem.batch"].tolist() == [8.0, 64.0, 100.0, 64.0]


def test_kernels_for_latency_alone_are_left_out():
    rows = pd.DataFrame({"config.implementation": ["flow", "flow_min_latency", "flow_nongated"]})
    assert with_expert_kind(rows)["config.experts"].tolist() == ["gated", "plain"]
