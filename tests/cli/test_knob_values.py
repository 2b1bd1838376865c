"""Tests lists and ranges of values on the command line: `foretune.cli.knob_values`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.cli.knob_values import MAX_RANGE, parse_range, parse_values
from foretune.errors import UsageError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0..3", [0, 1, 2, 3]),
        ("8..8", [8]),
        ("-2..1", [-2, -1, 0, 1]),
        ("0..100:25", [0, 25, 50, 75, 100]),
        ("0..10:4", [0, 4, 8]),
        ("1..8:x2", [1, 2, 4, 8]),
        ("3..30:x3", [3, 9, 27]),
    ],
)
def test_range_says_how_it_goes_on(text, values):
    assert parse_range(text) == values


def test_list_holds_values_and_ranges():
    assert parse_values("1, 8..32:x2,-O3,true,08,0.5") == [1, 8, 16, 32, "-O3", "true", "08", 0.5]


@pytest.mark.parametrize("text", ["a..b", "..", "v1..v2", "../data"])
def test_text_with_dots_is_no_range(text):
    assert parse_values(text) == [text]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9..8", "9..8 holds no value"),
        ("0..8:x2", "starts above 0"),
        ("1..8:x1", "starts above 0"),
        ("0..8:0", "the step must be at least 1"),
        ("0.1..0.5", "write whole numbers"),
        ("8..64:2x", "write whole numbers"),
        ("8..65536", "65,529 values, more than 1,000: write 8..65536:x2"),
    ],
)
def test_wrong_range_says_what_to_write(text, message):
    with pytest.raises(UsageError, match=message):
        parse_values(text)


@given(st.integers(-(10**6), 10**6), st.integers(0, MAX_RANGE - 1))
def test_range_without_step_has_every_integer(low, length):
    assert parse_range(f"{low}..{low + length}") == list(range(low, low + length + 1))
