"""What a result says about its server: `plan/serve/deployments/server_options.py`."""

from pathlib import Path

import pytest

from foretune.errors import UsageError
from foretune.plan.describe.formats import Formats
from foretune.plan.serve.deployments.server_options import (
    formats_of,
    options_of,
    require_plain_steps,
)

PATH = Path("lines.json")
WIDE = Formats()
"""A checkpoint in 16 bits."""
NARROW = Formats(weights="int4_wo", moe="int4_wo")
FP8 = Formats(weights="fp8", moe="fp8", kv="fp8")


@pytest.mark.parametrize(
    ("options", "published", "expected"),
    [
        ({}, WIDE, WIDE),
        ({"quantization": None, "kv_cache_dtype": "auto"}, WIDE, WIDE),
        ({"quantization": "fp8", "kv_cache_dtype": "fp8_e5m2"}, WIDE, FP8),
        ({"quantization": "awq_marlin"}, NARROW, NARROW),
        ({"quantization": "torchao", "weights": "fp8", "kv": "fp8"}, WIDE, FP8),
    ],
    ids=["nothing", "automatic", "online", "of the checkpoint", "labelled"],
)
def test_formats_of_server(options, published, expected):
    assert formats_of(options, published, PATH) == expected


@pytest.mark.parametrize(
    ("options", "label"),
    [({"quantization": "bitsandbytes"}, "weights"), ({"kv_cache_dtype": "int8"}, "kv")],
)
def test_formats_of_unknown_option_ask_for_the_label(options, label):
    with pytest.raises(UsageError, match=f'like "{label}": "fp8"'):
        formats_of(options, WIDE, PATH)


@pytest.mark.parametrize(
    "options",
    [
        {"speculative_algorithm": "EAGLE"},
        {"accept_length": 2.4},
        {"spec_decode_acceptance_length": 2.4},
        {"speculative_config": {"method": "ngram"}},
    ],
)
def test_drafted_steps_are_refused(options):
    with pytest.raises(UsageError, match="speculative decoding"):
        require_plain_steps(options, PATH)


def test_replicas_are_refused():
    server = {"dp_size": 2, "enable_dp_attention": False}
    with pytest.raises(UsageError, match="on 2 replicas"):
        require_plain_steps(server, PATH)
    # With attention-DP, the ranks are one server.
    require_plain_steps({**server, "enable_dp_attention": True}, PATH)


def test_options_of_line_count_before_those_of_server():
    options = options_of({"--kv-cache-dtype": "fp8"}, {"kv_cache_dtype": "auto", "dp_size": 1})
    assert options == {"kv_cache_dtype": "fp8", "dp_size": 1}
