"""Answers of other processes: data without code."""

import json
import pickle
import struct

import numpy as np
import pytest

from foretune.collect.answers import UnreadableAnswer, decode, encode
from foretune.collect.comparison import Rounds
from foretune.collect.isolated_implementation import CallOutputs, Output
from foretune.errors import MeasurementError, UsageError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        2**70,
        -0.5,
        float("inf"),
        "é\ud800",
        b"\0\xff",
        1 + 2j,
        [1, (2, "a")],
        {1: "a", "b": [None]},
        {(1, 2)},
        frozenset({3}),
    ],
)
def test_answers_plain_value_stays(value):
    back = decode(encode(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3).T,
        np.array(2.5),
        np.zeros((0, 3)),
        np.array(["a", "bc"]),
        np.array(["2020-01-01", "NaT"], "datetime64[D]"),
        np.array([1 + 1j], np.complex64),
    ],
)
def test_answers_array_stays(array):
    back = decode(encode({"x": array}))["x"]
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == np.ascontiguousarray(array).tobytes()
    back[...] = back  # it is writable


def test_answers_records_stay():
    measured = Measurement(
        "add", Problem(n=3), Configuration(block=2), "CPU", Status.OK, 1.5, (1.0, 2.0)
    )
    back = decode(encode(measured))
    assert repr(back) == repr(measured)  # NaN differs from itself
    assert (type(back.config), back.status) == (Configuration, Status.OK)
    rounds = decode(encode(Rounds({"a": np.ones(3)}, {"b": "it fails"}, ("zeros",))))
    assert rounds.failures == {"b": "it fails"}
    assert rounds.time_ms["a"].tolist() == [1, 1, 1]
    outputs = decode(encode(CallOutputs((Output("float", np.array(1.0)),), {})))
    assert outputs.returned[0].kind == "float"


def test_answers_errors_keep_their_class():
    error = decode(encode(UsageError("write it so")))
    assert type(error) is UsageError
    assert str(error) == "write it so"
    content = encode(UsageError("x")).replace(b"UsageError", b"SystemExit")
    assert type(decode(content)) is MeasurementError, "only Foretune's errors are raised"


class Code:
    def __reduce__(self):
        return pytest.fail, ("it ran",)


def framed(node):
    header = json.dumps(node).encode()
    return struct.pack(">Q", len(header)) + header


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 8,
        pickle.dumps(Code()),
        framed({"array": ["|O", [1], 0]}),
        framed({"array": ["<f8", [10**9], 0]}),
        framed({"array": ["<f8", [-1], 0]}),
        framed({"array": ["<f8", [1], -8]}),
        framed({"system": "rm"}),
        framed({"list": [1], "dict": []}),
        framed({"Rounds": {"dict": [["time_ms", {"dict": []}], ["code", 1]]}}),
        framed({"Output": {"dict": [["kind", 3], ["values", 1], ["place", "x"]]}}),
        framed({"Status": "won"}),
    ],
)
def test_answers_of_another_form_are_errors(content):
    with pytest.raises(UnreadableAnswer):
        decode(content)


def test_answers_objects_cannot_be_sent():
    for value in (Code(), np.array([Code()], object), {"x": Code()}):
        with pytest.raises(UnreadableAnswer, match=r"Code is no data|ndarray is no data"):
            encode(value)
