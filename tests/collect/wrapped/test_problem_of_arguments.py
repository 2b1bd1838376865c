"""The problem of a call: `collect/wrapped/problem_of_arguments.py`."""

import enum

import numpy as np
import pandas as pd
import pytest

from foretune.collect.wrapped.problem_of_arguments import REST, add_sizes, problem_of_arguments


class Mode(enum.Enum):
    EVEN = 1
    ODD = 2


def values_of(**arguments):
    return problem_of_arguments(list(arguments), list(arguments.values())).values


def test_problem_of_plain_arguments_is_readable():
    found = values_of(x=np.ones((2, 3), "f4"), n=5, alpha=0.5, mode="a", flag=None)
    assert found == {"x": "float32", "x_0": 2, "x_1": 3, "n": 5, "mode": "a", "flag": "None"}


def test_problem_of_table_has_its_shape_and_content_of_its_columns():
    found = values_of(table=pd.DataFrame({"v": range(7)}))
    other = values_of(table=pd.DataFrame({"w": range(7)}))
    assert (found["table"], found["table_0"], found["table_1"]) == ("DataFrame", 7, 1)
    assert found[REST] != other[REST]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Mode.EVEN, Mode.ODD),
        ({1, 2}, {1, 3}),
        ({"even": 1}, {"odd": 1}),
        ([64], [63]),
        (range(64), range(63)),
        (np.bool_(True), np.bool_(False)),
        (None, 0.5),
        (np.ones((4, 6)), np.ones((4, 6), order="F")),
        (np.ones((4, 6))[:, :3], np.ones((4, 3))),
        (np.zeros(3, "<f4"), np.zeros(3, ">f4")),
        (np.zeros(3), np.ma.zeros(3)),
        (2**70, 2**71),
        ("a" * 500, "a" * 499 + "b"),
        (len, sum),
        (1, True),
        (1, np.int64(1)),
        (np.int32(1), np.int64(1)),
        (True, np.True_),
        (True, "True"),
        (None, "None"),
        (1.0, np.float32(1)),
        (1.0, 1j),
        (np.float32(1), np.array(1, np.float32)),
        ("float32", np.array(1, np.float32)),
        (np.timedelta64(1, "D"), np.timedelta64(2, "D")),
    ],
    ids=str,
)
def test_problem_differs_if_an_argument_differs(one, other):
    assert values_of(x=one) != values_of(x=other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(0.5, 0.25), (np.float32(1), np.float32(2)), ((0.5, 3), (0.25, 3)), ({"a": 1.0}, {"a": 2.0})],
    ids=str,
)
def test_problem_does_not_depend_on_fractions_unless_asked(one, other):
    assert values_of(x=one) == values_of(x=other)
    exact = [problem_of_arguments(["x"], [v], floats_are_data=False).values for v in (one, other)]
    assert exact[0] != exact[1]


def test_problem_names_arguments_that_cannot_be_read(tmp_path):
    with (tmp_path / "file").open("w") as file:
        told = problem_of_arguments(["log", "n"], [file, 3])
    assert told.unreadable == ("the argument 'log' (a TextIOWrapper)",)


def test_add_sizes_keeps_an_argument_of_the_same_name():
    found = {"n": 64}
    add_sizes(found, {"n": 1000})
    assert found == {"n": 64, "n_": 1000}
