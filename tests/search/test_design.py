"""The farthest candidate of a design."""

import numpy as np
import pytest

from foretune.search.design import farthest

LINE = np.linspace(0.0, 1.0, 11)[:, None]  # 0, 0.1, …, 1


@pytest.mark.parametrize(
    ("known", "periodic", "expected"),
    [
        ([0.0], False, 10),  # the other end
        ([0.0], True, 5),  # around the circle, both ends are one point
        ([0.0, 1.0], False, 5),
        ([0.2, 0.6], False, 10),
        ([0.2, 0.6], True, 9),  # 0.9 is 0.3 from either
    ],
)
def test_farthest_on_a_line(known, periodic, expected):
    others = np.array(known)[:, None]
    assert farthest(LINE, others, periodic=periodic) == expected


def test_farthest_counts_the_nearest_of_several_points():
    candidates = np.array([[0.0, 0.9], [0.5, 0.5], [0.9, 0.2]])
    others = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert farthest(candidates, others) == 1
