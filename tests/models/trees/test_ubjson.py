"""UBJSON is read as its specification says, and refused where it is not complete."""

import json
import struct

import numpy as np
import pytest

from foretune.models.trees.boosting import BoostingModel
from foretune.models.trees.ubjson import read_ubjson as read
from foretune.models.trees.ubjson import zero_fields as zeroed


def plain(value):
    """Arrays as lists, recursively."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def size(number):
    return struct.pack(">cq", b"L", number)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"Z", None),
        (b"T", True),
        (b"i\xff", -1),
        (b"U\xff", 255),
        (b"I\x01\x00", 256),
        (b"D?\xf0\x00\x00\x00\x00\x00\x00", 1.0),
        (b"S" + size(2) + b"ab", "ab"),
        (b"[#" + size(2) + b"TF", [True, False]),
        (b"[$U#" + size(3) + b"\x01\x02\x03", [1, 2, 3]),
        (b"{" + size(1) + b"aT}", {"a": True}),
        (b"[#" + size(2) + b"[#" + size(0) + b"{}", [[], {}]),
    ],
)
def test_every_kind(data, value):
    assert plain(read(data)) == value


def test_a_model_as_in_json():
    X = np.random.default_rng(0).normal(0, 1, (50, 2)).astype(np.float32)
    booster = BoostingModel(rounds=2, depth=2).fit(X, X[:, 0]).booster_
    ours, theirs = read(bytes(booster.save_raw("ubj"))), json.loads(booster.save_raw("json"))
    (tree, *_), (text, *_) = (
        document["learner"]["gradient_booster"]["model"]["trees"] for document in (ours, theirs)
    )
    assert plain(tree["left_children"]) == text["left_children"]
    np.testing.assert_array_equal(tree["split_conditions"], np.float32(text["split_conditions"]))
    assert plain(ours["version"]) == theirs["version"]


def test_zeros_in_some_arrays_only():
    X = np.random.default_rng(0).normal(0, 1, (50, 2)).astype(np.float32)
    data = bytes(BoostingModel(rounds=3).fit(X, X[:, 0]).booster_.save_raw("ubj"))
    before, after = (
        read(d)["learner"]["gradient_booster"]["model"]["trees"]
        for d in (data, zeroed(data, ["loss_changes", "no such"]))
    )
    for old, new in zip(before, after, strict=True):
        assert old.pop("loss_changes").any()
        assert not new.pop("loss_changes").any()
        assert plain(old) == plain(new)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"?",
        b"S" + size(5) + b"ab",
        b"[$l#" + size(2) + b"\x00",
        b"{" + size(1) + b"a",
        b"ZZ",
        b"[T",
        b"[TF]",
        b"SU\x02ab",
        b"[#" + size(-1),
    ],
)
def test_what_is_none_is_refused(data):
    with pytest.raises(ValueError, match="UBJSON"):
        read(data)
