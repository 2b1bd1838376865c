"""What a user's check may return: True or False, and nothing that reads as either."""

import numpy as np
import pytest

from foretune.collect.wrapped.user_check import require_accepted
from foretune.kernel import WrongResult


def returns(value):
    return lambda right, got: value


@pytest.mark.parametrize("true", [True, np.True_, np.array(True)], ids=repr)
def test_user_check_accepts(true):
    require_accepted(returns(true), 1, 1)


@pytest.mark.parametrize("false", [False, np.False_, np.array(False)], ids=repr)
def test_user_check_rejects(false):
    with pytest.raises(WrongResult, match="verify rejects the output"):
        require_accepted(returns(false), 1, 1)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, "returns None"),
        (1e-3, "of class float"),
        (0, "of class int"),
        (np.array([True, True]), "of class ndarray"),
        (np.float64(0.0), "of class float64"),
        ("wrong", "of class str"),
    ],
    ids=repr,
)
def test_user_check_other_values_are_refused(value, named):
    """An error of 0.001 would read as True, one of 0.0 and the None of an assertion as False."""
    with pytest.raises(WrongResult, match=rf"verify .*{named}.*: it must return True or False"):
        require_accepted(returns(value), 1, 1)


def test_user_check_tensor_of_one_truth_value():
    torch = pytest.importorskip("torch")
    require_accepted(returns(torch.tensor(True)), 1, 1)
    with pytest.raises(WrongResult, match="of class Tensor"):
        require_accepted(returns(torch.tensor(1.0)), 1, 1)


def test_user_check_that_fails_is_named():
    with pytest.raises(WrongResult, match="verify fails: ZeroDivisionError"):
        require_accepted(lambda right, got: 1 / 0, 1, 1)


def test_user_check_gets_the_options_that_it_takes():
    def without(right, got):
        return True

    def with_atol(right, got, atol):
        return atol == 0.5

    require_accepted(without, 1, 1, atol=0.5)
    require_accepted(with_atol, 1, 1, atol=0.5)
    require_accepted(lambda right, got, **options: options == {"atol": 0.5}, 1, 1, atol=0.5)


def test_user_check_own_type_error_is_named():
    """It is no sign of a check without the option."""

    def fails(right, got, atol=0.0):
        raise TypeError("atol is None")

    with pytest.raises(WrongResult, match="verify fails: TypeError: atol is None"):
        require_accepted(fails, 1, 1, atol=0.5)
