"""A configuration that keeps results is told about `pinned`."""

import numpy as np
import pytest

from foretune.collect.wrapped.function import FunctionKernel
from foretune.errors import ForetuneWarning
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.functions.repeated_values import warn_of_repeated_values
from foretune.tune.results import Comparison, SearchStep, TuneResult

DEFAULT, CACHED = Configuration(keeps=0), Configuration(keeps=1)
KERNEL = FunctionKernel(lambda x, keeps=0: x + 1, {"keeps": [0, 1]}, (np.ones(3),), name="total")


def result(searched_ms, ratio, checked_on):
    """Return a result whose default takes 10 ms in the search."""
    steps = [(DEFAULT, 10.0), (CACHED, searched_ms)]
    return TuneResult(
        kernel="total",
        problem=Problem(),
        device="CPU",
        objective=Objective.TIME,
        searcher="random",
        trace=tuple(SearchStep(config, "ok", ms, np.nan, ms) for config, ms in steps),
        contenders=(
            Comparison("default", DEFAULT, 10.0, 1.0, 1.0, 1.0),
            Comparison("candidate 1", CACHED, 10.0, ratio, 0.9 * ratio, 1.1 * ratio),
        ),
        processes=5,
        rounds=25,
        seconds=1.0,
        checked_on=checked_on,
    )


def test_repeated_values_are_told():
    with pytest.warns(ForetuneWarning, match=r"keeps=1 was 20.0× as fast .* name them in pinned="):
        warn_of_repeated_values(KERNEL, result(0.5, 1.0, "new values in every round; also zeros"))


@pytest.mark.parametrize(
    ("searched_ms", "ratio", "checked_on"),
    [
        (0.5, 20.0, "new values in every round"),  # it wins
        (9.0, 1.0, "new values in every round"),  # noise
        (0.5, 1.0, "the given values only"),
    ],
)
def test_repeated_values_silent_without_cause(searched_ms, ratio, checked_on, recwarn):
    warn_of_repeated_values(KERNEL, result(searched_ms, ratio, checked_on))
    assert not recwarn.list
