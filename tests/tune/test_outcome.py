"""Tests the sentence about several tuned problems: `foretune.tune.outcome`."""

import math

import pytest

from foretune.space import Configuration
from foretune.tune.outcome import mean_ratio
from foretune.tune.results import Comparison


def contender(ratio: float, half_width: float = 0.0) -> Comparison:
    """A contender whose interval has this half width, in logarithms."""
    factor = math.exp(half_width)
    return Comparison(
        name="candidate 1",
        config=Configuration(n=1),
        value=1.0,
        ratio=ratio,
        ratio_low=ratio / factor,
        ratio_high=ratio * factor,
    )


def test_mean_ratio_of_one_is_its_own():
    mean = mean_ratio([contender(1.5, half_width=0.1)])
    assert mean.ratio == pytest.approx(1.5)
    assert (mean.low, mean.high) == pytest.approx((1.5 / math.exp(0.1), 1.5 * math.exp(0.1)))


def test_mean_ratio_halves_widths_as_independent_measurements_do():
    """The mean of four equal widths has half the width."""
    mean = mean_ratio([contender(2.0, half_width=0.2)] * 4)
    assert mean.ratio == pytest.approx(2.0)
    assert math.log(mean.high / mean.ratio) == pytest.approx(0.1)


def test_mean_ratio_counts_default_as_one():
    mean = mean_ratio([contender(4.0), contender(1.0)])
    assert mean.ratio == pytest.approx(2.0)
    assert str(mean) == "2.00× (2.00–2.00)"
