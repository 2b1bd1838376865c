"""Problems that are larger than all that were measured."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from foretune.models.frontier import Frontier

SIZES = arrays(float, st.tuples(st.integers(1, 12), st.just(2)), elements=st.integers(0, 10))


def test_frontier_largest_sizes_together_are_beyond():
    """10 and 10 were measured, but never together: the nearest problem lacks six octaves."""
    frontier = Frontier.fit(np.array([[10.0, 4.0], [4.0, 10.0], [5.0, 3.0]]))

    distances = frontier.octaves_beyond(np.array([[10.0, 10.0], [9.0, 4.0], [11.0, 4.0]]))

    np.testing.assert_array_equal(distances, [6.0, 0.0, 1.0])
    assert len(frontier.points) == 2  # 5 and 3 are exceeded


@given(measured=SIZES, wanted=SIZES)
def test_frontier_distance_is_that_from_all_measured_problems(measured, wanted):
    lacking = (wanted[:, None] - measured[None]).max(axis=2).min(axis=1)

    distances = Frontier.fit(measured).octaves_beyond(wanted)

    np.testing.assert_array_equal(distances, np.maximum(lacking, 0.0))
