import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.device import Device
from foretune.problem import Problem
from foretune.search.encoding import ConfigurationEncoder
from foretune.space import SearchSpace

TILES = {"block_size_x": (16, 32, 48, 64), "tile_size_x": (1, 2, 4)}


def points(space, **known):
    coordinates = ConfigurationEncoder(space, **known)
    return coordinates.encode(np.arange(len(space))), coordinates


@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.one_of(
            st.lists(st.integers(-4, 300), min_size=1, max_size=5, unique=True),
            st.lists(st.sampled_from(["x", "y", "auto"]), min_size=1, max_size=3, unique=True),
            st.just([False, True]),
            st.just(["auto", 1, 2]),
        ),
        max_size=4,
    )
)
def test_points_lie_in_the_unit_box_and_differ(parameters):
    space = SearchSpace(parameters)
    X, coordinates = points(space)
    assert X.shape == (len(space), len(coordinates))
    assert np.isfinite(X).all()
    assert (X >= 0).all()
    assert (X <= 1).all()
    assert len(np.unique(X, axis=0)) == len(space)


def test_sizes_are_equidistant_in_their_logarithm():
    X, _ = points(SearchSpace({"tile": (1, 2, 4, 8)}))
    assert np.allclose(X[:, 0], [0, 1 / 3, 2 / 3, 1])


def test_alignment_is_an_axis_of_its_own():
    X, coordinates = points(SearchSpace({"block": (16, 32, 48, 64)}))
    assert len(coordinates) == 2
    assert X[0, 1] == X[2, 1]  # 16 and 48 are multiples of 16, not of 32
    assert X[1, 1] != X[3, 1]


def test_words_are_one_axis_each():
    X, coordinates = points(SearchSpace({"order": ("ij", "ji", "blocked")}))
    assert len(coordinates) == 3
    distances = [np.linalg.norm(X[i] - X[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert np.allclose(distances, distances[0])


def test_encoding_optional_size_has_size_and_indicator():
    X, coordinates = points(SearchSpace({"unroll": ("off", 1, 2, 4, 8)}))
    assert len(coordinates) == 2
    assert np.allclose(X[1:, 1], [0, 1 / 3, 2 / 3, 1])
    assert X[0, 1] == 0.5


def test_encoding_constant_parameter_has_no_axis():
    X, coordinates = points(SearchSpace({"one": (7,)}))
    assert len(coordinates) == 0
    assert X.shape == (1, 0)


def test_encoding_includes_launch_geometry():
    space = SearchSpace(TILES)
    alone = len(ConfigurationEncoder(space))
    problem = Problem(size_0=1000)
    device = Device("Toy GPU", "gpu", specs={"cores": 10})
    assert (
        len(ConfigurationEncoder(space, problem, device))
        > alone
        > len(ConfigurationEncoder(SearchSpace({"b": (16, 32), "t": (1, 2)})))
    )


@pytest.mark.parametrize("numbers", [[3], [], [2, 0]])
def test_encoding_of_some_equals_encoding_of_all(numbers):
    space = SearchSpace(TILES)
    X, coordinates = points(space)
    assert np.array_equal(coordinates.encode(np.array(numbers, dtype=int)), X[numbers])
