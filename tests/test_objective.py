"""Tests hard limits: parsing, when they hold, how likely they hold: `foretune.objective`."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from foretune.errors import UsageError
from foretune.measurement import Measurement, Status
from foretune.objective import (
    LIMITABLE_COLUMNS,
    ConstrainedObjective,
    Limit,
    Objective,
    limitable_columns_of,
    violated_limits,
)
from foretune.problem import Problem
from foretune.space import Configuration


def run(status=Status.OK, time_ms=2.0, power_w=250.0, **more):
    figures = {"time_ms": time_ms, "power_w": power_w} if status is Status.OK else {}
    return Measurement("toy", Problem(n=1), Configuration(x=1), "Toy", status, **figures, **more)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("power_w=300", Limit("power_w", 300.0)),
        (" energy_mj = 1e3 ", Limit("energy_mj", 1000.0)),
        ("static.shared_bytes=49152", Limit("static.shared_bytes", 49152.0)),
    ],
)
def test_limit_parse_reads_column_and_bound(text, limit):
    assert Limit.parse(text) == limit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("power_w", "has no '=': give COLUMN=VALUE"),
        ("power=300", "unknown limit 'power': did you mean 'power_w'"),
        ("config.tile=3", "unknown limit 'config.tile'"),
        ("power_w=", "'' is not a number above 0"),
        ("power_w=much", "'much' is not a number above 0"),
        ("power_w=-1", "'-1' is not a number above 0"),
        ("power_w=nan", "'nan' is not a number above 0"),
        ("power_w=inf", "'inf' is not a number above 0"),
    ],
)
def test_limit_parse_refuses_other_text(text, message):
    with pytest.raises(UsageError, match=message):
        Limit.parse(text)


def test_limitable_columns_are_those_measured():
    m = run(relative_error=1e-3, static={"registers": 64.0})
    assert limitable_columns_of(m) == ["time_ms", "power_w", "relative_error", "static.registers"]
    assert [Limit(c, 1.0).value_of(m) for c in limitable_columns_of(m)] == [2.0, 250.0, 1e-3, 64.0]
    assert set(LIMITABLE_COLUMNS) <= set(vars(m))


def test_limit_allows_bound_but_not_unknown_value():
    assert Limit("power_w", 250).is_satisfied_by(run())
    assert not Limit("power_w", 249.9).is_satisfied_by(run())
    assert not Limit("power_w", 300).is_satisfied_by(run(power_w=math.nan))
    assert not Limit("static.registers", 300).is_satisfied_by(run())


def test_limit_needs_meter_for_power_and_energy():
    assert [c for c in LIMITABLE_COLUMNS if Limit(c, 1.0).needs_power] == ["power_w", "energy_mj"]


def test_constrained_objective_violation_counts_as_failure():
    goal = ConstrainedObjective(Objective.ENERGY, (Limit("power_w", 300.0), Limit("time_ms", 3.0)))
    assert goal.value_of(run()) == 500.0
    assert goal.value_of(run(power_w=301.0)) == math.inf
    assert goal.value_of(run(time_ms=3.1)) == math.inf
    assert goal.value_of(run(Status.TIMEOUT)) == math.inf
    assert goal.value_of(run(power_w=math.nan)) == math.inf


def test_constrained_objective_is_known_if_its_columns_are():
    goal = ConstrainedObjective(Objective.TIME, (Limit("power_w", 300.0),))
    assert goal.is_known(run())
    assert goal.is_known(run(Status.COMPILE_ERROR))
    assert not goal.is_known(run(power_w=math.nan))
    assert ConstrainedObjective(Objective.TIME, ()).is_known(run(power_w=math.nan))
    assert not ConstrainedObjective(Objective.EDP, ()).is_known(run(power_w=math.nan))


def test_violated_limits_compares_medians():
    limits = [Limit("power_w", 300.0), Limit("time_ms", 1.0)]
    assert violated_limits(limits[:1], [run(power_w=p) for p in (299, 400, 290)]) == ""
    assert violated_limits(limits, [run(power_w=p) for p in (301, 400, 290)]) == (
        "power_w 301 > 300, time_ms 2 > 1"
    )
    assert violated_limits(limits, [run(), run(Status.TIMEOUT)]) == "it no longer runs"
    assert violated_limits([], [run(Status.TIMEOUT)]) == ""


def predicted(**columns):
    return pd.DataFrame({"p_valid": np.ones(3), **columns})


def test_limit_probability_follows_log_normal_error():
    """A log error that is normal with 10 %: certain far below, even at the bound."""
    value = np.array([100.0, 300.0, 330.0])
    factor = math.exp(0.1 * 1.645)
    table = predicted(power_w=value, power_w_low=value / factor, power_w_high=value * factor)
    expected = norm.cdf(np.log(300 / value) / 0.1)
    assert Limit("power_w", 300).probability(table) == pytest.approx(expected)
    assert Limit("power_w", 300).probability(table)[1] == pytest.approx(0.5)


def test_limit_probability_of_unpredicted_energy_is_1():
    assert (Limit("energy_mj", 150).probability(predicted()) == 1).all()


def test_limit_probability_of_unpredicted_columns_is_1():
    assert list(Limit("power_w", 300).probability(predicted())) == [1, 1, 1]
    assert list(Limit("static.registers", 64).probability(predicted())) == [1, 1, 1]


def test_limit_probability_without_spread_is_step():
    value = np.array([299.0, 300.0, 301.0])
    table = predicted(power_w=value, power_w_low=value, power_w_high=value)
    assert Limit("power_w", 300).probability(table) == pytest.approx([1, 0.5, 0])
