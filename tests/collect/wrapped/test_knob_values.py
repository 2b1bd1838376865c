"""Values of knobs that a run table cannot store: `collect/wrapped/knob_values.py`."""

import enum
import functools
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

import foretune as ft
from foretune.collect.wrapped.function import FunctionKernel
from foretune.collect.wrapped.knob_values import KnobValues
from foretune.errors import SpaceError, UsageError

QUICK = {"isolated": False, "verify_s": 0.0, "progress": False, "budget": 4}
X = np.ones(100)


class Mode(enum.Enum):
    ROW = 1
    COLUMN = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


def first(x):
    return x[0]


def last(x):
    return x[-1]


def texts(*values):
    return KnobValues({"knob": values}).listed["knob"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 2.5, "a", False), (1, 2.5, "a", False)),
        ((None, 4), ("None", 4)),
        (((8, 8), (8, 16)), ("(8, 8)", "(8, 16)")),
        (((1, Mode.ROW),), ("(1, Mode.ROW)",)),
        (([8, None],), ("[8, None]",)),
        (tuple(Mode), ("Mode.ROW", "Mode.COLUMN")),
        (tuple(Level), ("Level.LOW", "Level.HIGH")),
        ((min, max), ("min", "max")),
        ((np.float32,), ("numpy.float32",)),
        ((Fraction(1, 3),), ("Fraction(1, 3)",)),
        ((1, 1.0, True), ("1", "1.0", "True")),
        ((0.5, float("nan")), (0.5, "nan")),
        ((2**64,), ("18446744073709551616",)),
        ((None, "None"), ("None 2", "None")),
        ((functools.partial(max, 3),), ("partial(max, 3)",)),
        ((frozenset({"b", "a", "c"}),), ("frozenset({'a', 'b', 'c'})",)),
        ((frozenset(),), ("frozenset()",)),
        (({"way": {"b", "a"}},), ("{'way': set({'a', 'b'})}",)),
        (((1,), (True,)), ("(1)", "(True)")),
        (((1,), (1.0,)), ("(1)", "(1.0)")),
    ],
)
def test_knob_values_get_texts_only_if_needed(values, expected):
    listed = texts(*values)
    assert listed == expected
    assert [*map(type, listed)] == [*map(type, expected)]


def test_knob_values_two_lambdas_get_different_texts():
    one, other = texts(lambda x: 1, lambda x: 2)
    assert one.endswith("<lambda>")
    assert other == f"{one} 2"


@pytest.mark.parametrize("values", [[None, None], [min, min], [1, 1]])
def test_knob_values_repeated_value_is_refused(values):
    with pytest.raises(SpaceError, match="lists a value twice"):
        FunctionKernel(lambda x, knob=None: x, {"knob": values}, (X,))


@pytest.mark.parametrize("value", [object(), np.ones(3)])
def test_knob_values_value_without_name_is_refused(value):
    with pytest.raises(UsageError, match=r"value without a name, .*: list names instead"):
        texts(value)


def test_knob_values_no_list_is_refused():
    with pytest.raises(UsageError, match="knob 'knob' is None: give a list of its values"):
        KnobValues({"knob": None})


def test_knob_values_decode_inverts_encode():
    values = KnobValues({"mode": [None, Mode.ROW, 1, 1.0], "size": [(8, 8), 4]})
    for mode in (None, Mode.ROW, 1, 1.0):
        config = {"mode": mode, "size": (8, 8)}
        decoded = values.decode(values.encode(config))
        assert decoded == config
        assert type(decoded["mode"]) is type(mode)


def test_knob_values_set_has_same_order_in_each_process():
    code = (
        "from foretune.collect.wrapped.knob_values import KnobValues;"
        "print(KnobValues({'k': {'b', 'a', 'c', 'd'}}).listed['k'])"
    )
    orders = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert orders == {"('a', 'b', 'c', 'd')\n"}


@pytest.mark.parametrize(
    "rule",
    [
        lambda mode, size: mode is Mode.ROW and size is None,
        lambda size, mode=None: mode is Mode.ROW and size is None,
        lambda **config: config["mode"] is Mode.ROW and config["size"] is None,
        lambda *values: values == (Mode.ROW, None),
        lambda config: config["mode"] is Mode.ROW and config["size"] is None,
        "mode == 'Mode.ROW' and size == 'None'",
    ],
    ids=["names", "default", "mapping", "values", "one mapping", "text"],
)
def test_function_kernel_rules_get_the_values(rule):
    kernel = FunctionKernel(
        lambda x, mode=Mode.ROW, size=None: x,
        {"mode": list(Mode), "size": [None, (8, 8)]},
        (X,),
        restrictions=rule,
    )
    assert [kernel.decode(c) for c in kernel.space(kernel.problem())] == [
        {"mode": Mode.ROW, "size": None}
    ]


def test_function_kernel_code_of_function_values_counts():
    def kernel(choice):
        return FunctionKernel(lambda x, how=first: how(x), {"how": [first, choice]}, (X,))

    def other(x):
        return x[-1]

    before = kernel(other).source_hash

    def other(x):
        return x[-1] + 0

    assert kernel(other).source_hash != before


def reduce(x, how=first, size=None):
    """Fails unless it gets the values themselves."""
    if size is not None and size != (8, 8):
        raise TypeError(size)
    return how(x)


def test_tune_function_calls_with_the_values_and_returns_them():
    knobs = {"how": [first, last], "size": [None, (8, 8)]}
    best = ft.tune_function(reduce, knobs, args=(X,), **QUICK)
    assert [step.status for step in best.result.trace] == ["ok"] * 4
    assert best.config["how"] in (first, last)
    assert best.default == {"how": first, "size": None}

    stored = ft.tune_function(reduce, knobs, args=(X,), **QUICK)
    assert stored.measured == 0
    assert stored.config == best.config


def test_tune_function_exports_texts(tmp_path):
    best = ft.tune_function(
        lambda x, size=None: x.sum(), {"size": [None, (8, 8)]}, args=(X,), name="sums", **QUICK
    )
    exported = best.export(tmp_path / "tuned.json").read_text("utf-8")
    assert '"size": "None"' in exported or '"size": "(8, 8)"' in exported


def test_tunable_calls_with_the_values():
    @ft.tunable(how=(h for h in (first, last)), options=QUICK)
    def reduce(x, how=first):
        return how(x)

    assert reduce(X) == reduce(np.ones(50)) == 1.0
