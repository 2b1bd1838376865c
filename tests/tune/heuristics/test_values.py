"""Configurations for programs that do not know Foretune."""

import pytest

from foretune.errors import UsageError
from foretune.tune.heuristics.values import format_values


def test_a_header_defines_knobs_and_names_options():
    config = {"block": 32, "wide": True, "shift": -1, "opt": "-O3"}
    header = format_values("h", "product", config, {"device": "a */ b"})
    assert (
        "#define block 32\n#define wide 1\n#define shift -1\n/* compile with opt -O3 */" in header
    )
    assert "/* device: a * / b */" in header


def test_a_knob_that_c_cannot_name_is_refused():
    with pytest.raises(UsageError, match="export JSON instead"):
        format_values("h", "product", {"block size": 32}, {})
