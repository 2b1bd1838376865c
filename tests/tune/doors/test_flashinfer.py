"""Foretune in FlashInfer's own AutoTuner, with recorded times in place of its clock."""

import sys

import pytest

pytest.importorskip("flashinfer.autotuner")

import torch
from doors import RecordedFlashInfer
from flashinfer.autotuner.autotuner import AutoTuner
from flashinfer.tactics_blocklist import TacticsBlocklist

from foretune.errors import UsageError
from foretune.tune.doors import flashinfer, patch_flashinfer

pytestmark = pytest.mark.filterwarnings("default")
TACTICS = [(rows, columns, stages) for rows in (16, 32, 64, 128) for columns in (32, 64, 128)
           for stages in (2, 3)]  # fmt: skip


def time_of(m, tactic):
    """Best with as many rows as there are, 64 columns and 3 stages."""
    rows, columns, stages = tactic
    return 1 + abs(rows - min(m, 128)) / 64 + abs(columns - 64) / 64 + (stages == 2) / 4


@pytest.fixture
def layers():
    return [
        {(m, k, 256): {t: time_of(m, t) for t in TACTICS} for m in (16, 32, 64, 128, 512)}
        for k in (256, 1024)
    ]


@pytest.fixture
def tool(layers, monkeypatch):
    """FlashInfer on these times; everything is restored."""
    for name in ("_profile_single_kernel", "_generate_optimization_profiles",
                 "_prepare_input_tensors"):  # fmt: skip
        monkeypatch.setattr(AutoTuner, name, getattr(AutoTuner, name))
    monkeypatch.setattr(TacticsBlocklist, "filter", TacticsBlocklist.filter)
    captured = torch.cuda.is_current_stream_capturing
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", captured)
    return RecordedFlashInfer(layers)


def numbers(tool):
    return [len(times) for times in tool.timed.values()]


def test_one_bucket_is_timed_in_full_and_the_default_always(tool, layers):
    alone = tool.tune()
    assert numbers(tool) == [len(TACTICS)] * 10
    undo = patch_flashinfer(budget=4)
    found = tool.tune()
    assert next(iter(tool.timed)) == (512, 256, 256)
    # The default is the first tactic; it may also be among the other three.
    assert numbers(tool)[0] == len(TACTICS)
    assert set(numbers(tool)[1:]) <= {3, 4}
    assert all(TACTICS[0] in times for times in tool.timed.values())
    assert found[512, 256, 256] == alone[512, 256, 256]
    assert all(found[size] <= time_of(size[0], TACTICS[0]) for size in alone)
    undo()
    assert tool.tune() == alone
    assert numbers(tool) == [len(TACTICS)] * 10


def test_flashinfer_goes_on_if_foretune_fails(tool, monkeypatch):
    alone = tool.tune()
    monkeypatch.setattr(flashinfer, "OrderedSearcher", None)
    patch_flashinfer(budget=4)
    assert tool.tune() == alone
    assert numbers(tool) == [len(TACTICS)] * 10


def test_failing_tactics_are_remembered(tool, layers):
    for layer in layers:
        for times in layer.values():
            times.update({t: float("inf") for t in TACTICS if t[0] == 64})
    patch_flashinfer(budget=6)
    tool.tune()
    later = [t for times in list(tool.timed.values())[2:] for t in times]
    assert later
    assert not [t for t in later if t[0] == 64]


def test_other_versions_are_refused(tool, monkeypatch):
    monkeypatch.delattr(AutoTuner, "_prepare_input_tensors")
    with pytest.raises(UsageError, match=r"0\.7\.2 was tested"):
        patch_flashinfer()
    monkeypatch.setitem(sys.modules, "flashinfer.autotuner", None)
    with pytest.raises(UsageError, match="cannot be patched"):
        patch_flashinfer()


def test_the_default_needs_room():
    with pytest.raises(UsageError, match="2 or more"):
        patch_flashinfer(budget=1)
