"""Answers of workers: all there are survive as JSON, and nothing in them runs."""

import math
import pickle

import numpy as np
import pytest
from toy_kernel import DEVICE, Toy, config

from foretune.collect.comparison import Rounds
from foretune.collect.distributed.actor import decode, encode
from foretune.collect.machine_load import MachineLoad
from foretune.errors import ForetuneError, MeasurementError, UnknownName, UsageError
from foretune.measurement import Measurement, Status

FAILED = Measurement("toy", Toy().problem(n=20), config(), "Toy CPU", Status.TIMEOUT, error="hangs")
MEASURED = Measurement(
    "toy", Toy().problem(n=20), config("wrong"), "Toy CPU", Status.OK, 1.5, (1.0, 1.5, 2.0), 7.0,
    static={"registers": 3.0}, compile_s=0.1, environment="e",
)  # fmt: skip


@pytest.mark.parametrize("answer", [DEVICE, MachineLoad(0.25, 0.0, "hot", 1), [], None])
def test_what_is_answered(answer):
    assert decode(encode(answer)) == answer


def test_measurements():
    failed, measured = decode(encode([FAILED, MEASURED]))
    assert measured == Measurement(**{**vars(MEASURED), "energy_mj": measured.energy_mj,
                                      "relative_error": measured.relative_error})  # fmt: skip
    assert math.isnan(measured.energy_mj)
    assert (failed.status, failed.error, failed.config) == (Status.TIMEOUT, "hangs", FAILED.config)


def test_rounds():
    given = Rounds({"a": np.array([1.0, np.nan]), "b": np.zeros(0)}, {"c": "it hangs"})
    again = decode(encode(given))
    assert list(again.time_ms) == ["a", "b"]
    np.testing.assert_array_equal(again.time_ms["a"], [1.0, np.nan])
    assert again.time_ms["b"].dtype == float
    assert again.failures == {"c": "it hangs"}


@pytest.mark.parametrize("error", [UsageError("no"), UnknownName("kernel", "x", ["y"])])
def test_errors(error):
    again = decode(encode(error))
    assert type(again) is type(error)
    assert str(again) == str(error)


def test_errors_of_other_kinds():
    class Mine(ForetuneError):
        pass

    assert type(decode(encode(Mine("no")))) is MeasurementError
    assert type(decode(b'{"kind": "error", "content": {"kind": "redact", "message": "x"}}')) is (
        MeasurementError
    )


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(print), b"", b"[]", b"{}", b'{"kind": "code", "content": 1}',
        b'{"kind": "measurements", "content": [{}]}', b'{"kind": "device", "content": {"x": 1}}',
        b'{"kind": "rounds", "content": [{"a": ["x"]}, {}]}',
    ],
)  # fmt: skip
def test_what_is_no_answer(content):
    with pytest.raises(ValueError, match="its answer is damaged"):
        decode(content)
