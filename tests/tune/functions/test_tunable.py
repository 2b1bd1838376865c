"""Which calls share a choice, and the check of a stored one: `tune/functions/tunable.py`."""

import dataclasses
import enum
import os
import time
import warnings

import numpy as np
import pytest

import foretune as ft
from foretune.collect import Timing
from foretune.device import Device
from foretune.errors import ForetuneWarning, UsageError
from foretune.tune.functions import tunable as tunables
from foretune.tune.functions import tuning

DEVICE = Device("This CPU", "cpu", specs={"cores": 2.0})
OPTIONS = {"isolated": False, "verify_s": 0.5, "progress": False, "budget": 2}
X = np.arange(1.0, 65.0)
ALL = X.sum()
ALL_BUT_ONE = X[:63].sum()
SIZE = [64]


class Mode(enum.Enum):
    EVEN = 64
    ODD = 63


@dataclasses.dataclass
class Options:
    size: int


class Sized:
    def __init__(self, size):
        self.size = size
        self.calls = 0

    @ft.tunable(block=[1, 8], options=OPTIONS)
    def total(self, x, block=1):
        self.calls += 1
        return sums(x, self.size, block)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    for module in (tuning, tunables):
        monkeypatch.setattr(module, "local_device", lambda name, measure: DEVICE)
    quick = Timing(max_seconds=0.02, warmup_s=0.001)
    monkeypatch.setattr(Timing, "__init__", lambda self, **_: vars(self).update(vars(quick)))
    tunables._device.cache_clear()
    yield
    SIZE[0] = 64


def sums(x, size, block):
    """Return the sum of the first ``size`` elements; the rest of a last block is dropped.

    The larger block is wrong if it does not divide the size. It is the faster one, by so much that
    other load cannot hide it: a sleep may end late, so only the smaller block has one.
    """
    if block == 1:
        time.sleep(2e-3)
    return x[: size // block * block].sum()


def tunable(size_of, **more):
    @ft.tunable(block=[1, 8], options=OPTIONS, **more)
    def total(x, given, block=1):
        return sums(x, size_of(given), block)

    return total


def all_of(x):
    return 64


def all_but_one(x):
    return 63


@pytest.mark.parametrize(
    ("size_of", "even", "odd"),
    [
        (lambda mode: mode.value, Mode.EVEN, Mode.ODD),
        (len, set(range(64)), set(range(63))),
        (len, range(64), range(63)),
        (lambda flag: 64 if flag else 63, np.True_, np.False_),
        (lambda given: given.size, Options(64), Options(63)),
        (lambda given: 64 if "even" in given else 63, {"even": 1}, {"odd": 1}),
        (lambda given: 64 if given is None else 63, None, 0.5),
        (lambda given: given(None), all_of, all_but_one),
        (lambda share: int(share * 64), 1.0, 63 / 64),
    ],
    ids=["enum", "set", "range", "numpy bool", "object", "keys", "none", "function", "fraction"],
)
@pytest.mark.filterwarnings("ignore::foretune.errors.ForetuneWarning")
def test_tunable_other_argument_gets_its_own_choice(size_of, even, odd):
    total = tunable(size_of)
    assert total(X, even) == ALL
    assert total(X, odd) == ALL_BUT_ONE


def test_tunable_global_counts_as_it_is_now():
    @ft.tunable(block=[1, 8], options=OPTIONS)
    def total(x, block=1):
        return sums(x, SIZE[0], block)

    assert total(X) == ALL
    SIZE[0] = 63
    assert total(X) == ALL_BUT_ONE


@pytest.mark.parametrize(
    "size",
    [lambda: int(os.environ["TOY_SIZE"]), lambda: int(os.environ["TOY_" + "size".upper()])],
    ids=["named", "computed"],
)
@pytest.mark.filterwarnings("ignore::foretune.errors.ForetuneWarning")
def test_tunable_environment_variable_counts_as_it_is_now(size, monkeypatch):
    @ft.tunable(block=[1, 8], options=OPTIONS)
    def total(x, block=1):
        return sums(x, size(), block)

    monkeypatch.setenv("TOY_SIZE", "64")
    assert total(X) == ALL
    monkeypatch.setenv("TOY_SIZE", "63")
    assert total(X) == ALL_BUT_ONE


def test_tunable_method_counts_attributes_but_not_its_own_counter():
    even, odd = Sized(64), Sized(63)
    assert even.total(X) == ALL
    assert odd.total(X) == ALL_BUT_ONE
    tuned = even.calls
    assert even.total(X + 0) == ALL
    assert even.calls == tuned + 1, "the counter is no other work"


def test_tunable_wrong_stored_choice_is_refused_with_a_line():
    total = tunable(lambda size: SIZE[0], identity="sums")
    assert total(X, 0) == ALL
    again = tunable(lambda size: SIZE[0], identity="sums")
    SIZE[0] = 63
    with pytest.warns(ForetuneWarning, match="its stored choice, block=8, is wrong"):
        assert again(X, 0) == ALL_BUT_ONE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert again(X, 0) == ALL_BUT_ONE


def test_tunable_never_checks_if_told_so():
    total = tunable(lambda size: SIZE[0], identity="unchecked", check="never")
    assert total(X, 0) == ALL
    again = tunable(lambda size: SIZE[0], identity="unchecked", check="never")
    SIZE[0] = 63
    assert again(X, 0) == X[:56].sum()  # the choice, block=8, drops the rest


def test_tunable_fractions_count_once_a_check_disagreed():
    total = tunable(lambda share: int(share * 64))
    assert total(X, 1.0) == ALL
    with pytest.warns(ForetuneWarning, match="floating-point arguments count from now on"):
        assert total(X, 63 / 64) == ALL_BUT_ONE
    assert total(X, 0.5) == X[:32].sum()


def test_tunable_identity_may_be_a_function_of_the_arguments():
    calls = []

    @ft.tunable(block=[1, 8], options=OPTIONS, identity=lambda x, log, block=1: f"n={len(x)}")
    def total(x, log, block=1):
        calls.append(block)
        return sums(x, 64, block)

    with open(__file__) as file:  # cannot be read as a part of the work
        assert total(X, file) == ALL
        calls.clear()
        assert total(X, file) == ALL
    assert calls == [8]


def test_tunable_identity_must_be_a_text():
    with pytest.raises(UsageError, match="identity=3: give a text"):
        tunable(len, identity=3)


def test_tunable_unreadable_work_is_tuned_and_a_line_names_it():
    total = tunable(lambda file: 64)
    line = r"not reused: the argument 'given' .*identity="
    with open(__file__) as file, pytest.warns(ForetuneWarning, match=line):
        assert total(X, file) == ALL


def test_tunable_that_changes_with_every_call_stops_tuning():
    total = tunable(lambda given: 64)
    for number in range(tunables.MAX_STATES):
        assert total(X, {"step": number}) == ALL
    with pytest.warns(ForetuneWarning, match="runs with its default for new work"):
        assert total(X, {"step": -1}) == ALL


def test_tunable_first_call_with_a_stored_choice_runs_default_and_choice_once(monkeypatch):
    calls = []

    def make():
        @ft.tunable(block=[1, 8], options=OPTIONS, identity="counted")
        def counted(x, block=1):
            calls.append(block)
            x += 1.0
            return x.sum()

        return counted

    monkeypatch.setattr(tunables.Tunable, "_stored_choice", lambda *_: {"block": 8})
    x = X.copy()

    assert make()(x) == ALL + len(X)

    assert calls == [1, 8, 8], "the default and the choice on copies, then the call itself"
    assert np.array_equal(x, X + 1.0)


def test_tunable_default_that_differs_from_itself_refutes_no_choice(monkeypatch):
    numbers = iter(range(100))

    @ft.tunable(block=[1, 8], options=OPTIONS, identity="numbered")
    def numbered(x, block=1):
        return x * next(numbers)

    monkeypatch.setattr(tunables.Tunable, "_stored_choice", lambda *_: {"block": 8})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbered(X)
