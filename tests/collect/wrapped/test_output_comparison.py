"""Which outputs are the same: `foretune/collect/wrapped/output_comparison.py`."""

import collections
import datetime
import decimal
import enum
import fractions
import pathlib
import threading

import numpy as np
import pandas as pd
import pytest

from foretune.collect import InProcessRunner, Timing
from foretune.collect.wrapped.function import FunctionKernel
from foretune.device import Device
from foretune.measurement import Status
from foretune.space import Configuration

RUNNER = InProcessRunner(
    Device("This CPU", "cpu", specs={"cores": 2.0}), Timing(max_seconds=0.02, warmup_s=0.001)
)
X = np.random.default_rng(0).normal(size=(20, 6))
UTC = datetime.UTC


class Mode(enum.Enum):
    EVEN = 1
    ODD = 2


class Output:
    def __init__(self, x, **more):
        self.x = x
        vars(self).update(more)


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class EqualsAll(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


def categories(labels, ordered=False):
    return pd.Series(pd.Categorical(["a"], categories=labels, ordered=ordered))


def ordered(*names):
    return collections.OrderedDict(dict.fromkeys(names, 1.0))


def masked(fill):
    return np.ma.masked_array(X, X > 0, fill_value=fill)


def dated(index):
    return pd.DataFrame({"v": [1.0, 2.0]}, index=index)


def tensor(x=X):
    torch = pytest.importorskip("torch", reason="needs torch")
    return torch.as_tensor(x) * 2


def measured(default, candidate):
    def work(x, how=0):
        return (candidate if how else default)(x)

    kernel = FunctionKernel(work, {"how": [0, 1]}, (X,))
    (found,) = RUNNER.run(kernel, kernel.problem(), [Configuration(how=1)])
    return found


DAYS = pd.date_range("2020", periods=2)
WRONG = {
    "enum": (Mode.EVEN, Mode.ODD),
    "decimal": (decimal.Decimal("1.1"), decimal.Decimal("1.2")),
    "fraction": (fractions.Fraction(1, 3), fractions.Fraction(1, 4)),
    "zone": (datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, tzinfo=UTC)),
    "path": (pathlib.Path("a"), pathlib.Path("b")),
    "slice": (slice(3), slice(4)),
    "class": (float, int),
    "missing": (pd.Series([1, pd.NA], dtype=object), pd.Series([1, np.nan], dtype=object)),
    "timestamp": (pd.Timestamp("2020"), pd.Timestamp("2021")),
    "elements of a set": ({1, 2}, {True, 2}),
    "length of a queue": (collections.deque([1.0], 5), collections.deque([1.0], 2)),
    "order of an ordered dict": (ordered("a", "b"), ordered("b", "a")),
    "counter": (collections.Counter("aab"), collections.Counter("abb")),
    "fill value": (masked(1.0), masked(2.0)),
    "order of categories": (categories(["a", "b"]), categories(["b", "a"])),
    "ordered categories": (categories(["a", "b"]), categories(["a", "b"], ordered=True)),
    "one more category": (categories(["a"]), categories(["a", "b"])),
    "step of an index": (dated(DAYS), dated(pd.DatetimeIndex(list(DAYS)))),
    "attribute": (Output(X), Output(X * 2)),
    "one more attribute": (Output(X), Output(X, y=1)),
    "slot": (Slotted(X), Slotted(X * 2)),
    "equals all": (5, EqualsAll(6)),
    "equal in a list": ([5, X], [EqualsAll(6), X]),
}


@pytest.mark.parametrize(("right", "wrong"), WRONG.values(), ids=WRONG)
def test_output_other_value_is_wrong(right, wrong):
    found = measured(lambda x: right, lambda x: wrong)
    assert found.status is Status.WRONG_RESULT, found.error


def later(change):
    """Return a function whose thread changes something after the call."""

    def work(x):
        output = x * 2
        threading.Timer(0.005, change, args=(x, output)).start()
        return output

    return work


@pytest.mark.parametrize(
    ("default", "candidate"),
    [
        (lambda x: tensor().requires_grad_(), lambda x: tensor()),
        (lambda x: tensor(), lambda x: tensor().requires_grad_()),
        (lambda x: tensor()[:1].repeat(20, 1), lambda x: tensor()[:1].expand(20, 6)),
        (lambda x: Output(x.copy()), lambda x: Output(x)),
        (lambda x: x * 2, later(lambda x, output: output.fill(0))),
        (lambda x: x * 2, later(lambda x, output: x.fill(0))),
    ],
    ids=["gradients lost", "gradients", "expanded", "view in an object", "late", "late input"],
)
def test_output_other_effect_is_wrong(default, candidate):
    found = measured(default, candidate)
    assert found.status is Status.WRONG_RESULT, found.error


@pytest.mark.parametrize(
    "make",
    [
        lambda x: Output(x * 2),
        lambda x: Slotted(x * 2),
        lambda x: [Mode.EVEN, decimal.Decimal("nan"), pathlib.Path("a"), slice(3), float, x * 2],
        lambda x: collections.Counter("aab"),
        lambda x: collections.defaultdict(list, a=[1.0]),
        lambda x: (x[:0].copy(), x * 2),
        lambda x: tensor(x).to_sparse(),
        lambda x: pd.Series([1, pd.NA], dtype=object),
        lambda x: pd.cut(pd.Series(x[:, 0]), 3).value_counts(),
        lambda x: bytearray(b"ab"),
    ],
    ids=range(10),
)
def test_output_equal_one_is_accepted(make):
    found = measured(make, lambda x: make(x + 0))
    assert found.ok, found.error
