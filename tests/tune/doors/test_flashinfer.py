"""Foretune in FlashInfer's own AutoTuner, with recorded times in place of its clock."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("flashinfer.autotuner")

import numpy as np
import torch
from doors import RecordedFlashInfer
from flashinfer.autotuner.autotuner import AutoTuner, TuningConfig
from flashinfer.tactics_blocklist import TacticsBlocklist

from foretune.errors import ForetuneWarning, UsageError
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune import doors
from foretune.tune.doors.flashinfer import TacticTimes, patch_flashinfer
from foretune.tune.store import Store, Subject

pytestmark = pytest.mark.filterwarnings("default")
TACTICS = [
    (rows, columns, stages)
    for rows in (16, 32, 64, 128)
    for columns in (32, 64, 128)
    for stages in (2, 3)
]


def time_of(m, tactic):
    """Best with as many rows as there are, 64 columns and 3 stages."""
    rows, columns, stages = tactic
    return 1 + abs(rows - min(m, 128)) / 64 + abs(columns - 64) / 64 + (stages == 2) / 4


def recorded_layers():
    return [
        {(m, k, 256): {t: time_of(m, t) for t in TACTICS} for m in (16, 32, 64, 128, 512)}
        for k in (256, 1024)
    ]


@pytest.fixture
def layers():
    return recorded_layers()


@pytest.fixture
def tool(layers, monkeypatch):
    """FlashInfer on these times; everything is restored."""
    for name in (
        "_profile_single_kernel",
        "_generate_optimization_profiles",
        "_prepare_input_tensors",
    ):
        monkeypatch.setattr(AutoTuner, name, getattr(AutoTuner, name))
    monkeypatch.setattr(TacticsBlocklist, "filter", TacticsBlocklist.filter)
    captured = torch.cuda.is_current_stream_capturing
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", captured)
    return RecordedFlashInfer(layers)


def numbers(tool):
    return [len(times) for times in tool.timed.values()]


def test_flashinfer_first_two_buckets_are_timed_in_full(tool, layers):
    alone = tool.tune()
    assert numbers(tool) == [len(TACTICS)] * 10
    undo = patch_flashinfer(budget=4, store=False)
    found = tool.tune()
    assert [size[0] for size in tool.timed] == [512, 16, 128, 64, 32] * 2
    # The default is the first tactic; it may also be among the other three.
    assert numbers(tool)[:2] == [len(TACTICS)] * 2
    assert set(numbers(tool)[2:]) <= {3, 4}
    assert all(TACTICS[0] in times for times in tool.timed.values())
    assert all(found[size] == alone[size] for size in [*tool.timed][:2])
    assert all(found[size] <= time_of(size[0], TACTICS[0]) for size in alone)
    undo()
    assert tool.tune() == alone
    assert numbers(tool) == [len(TACTICS)] * 10


@pytest.mark.parametrize("method", ["choose", "estimates", "record"])
def test_flashinfer_times_all_if_foretune_fails(tool, monkeypatch, method):
    alone = tool.tune()
    monkeypatch.setattr(TacticTimes, method, None)
    patch_flashinfer(budget=4, store=False)
    found = tool.tune()
    if method == "estimates":  # the least time decides
        assert found == {size: min(times.values()) for size, times in tool.timed.items()}
    else:  # without memory, or a way to use it, every tactic is timed
        assert found == alone
        assert numbers(tool) == [len(TACTICS)] * 10


def test_flashinfer_store_keeps_times(tool, tmp_path):
    alone = tool.tune()
    store = tmp_path / "store.db"
    undo = patch_flashinfer(budget=4, store=store)
    tool.tune()
    undo()
    undo = patch_flashinfer(budget=4, store=store)
    assert tool.tune() == alone
    assert set(numbers(tool)) <= {3, 4}
    undo()
    (subject,) = Store(store).subjects()
    assert subject.kernel == "gemm Recorded"
    assert len(Store(store).measurements(subject)) >= 2 * len(TACTICS)


def test_estimates_outweigh_one_lucky_time():
    times = TacticTimes(Subject("gemm", "", "this", ""), False)
    configs = [Configuration({"tactic": str(i)}) for i in range(6)]
    usual = [1.0, 1.02, 1.1, 1.2, 1.3, 1.4]
    noise = 1 + 0.01 * np.random.default_rng(0).standard_normal((6, 6))
    for m, wobble in zip((16, 32, 64, 128, 256, 512), noise, strict=True):
        for config, time, factor in zip(configs, usual, wobble, strict=True):
            times.record(Problem(M=m), config, m * time * factor)
    lucky = dict(zip(configs, [1024.0, 1010.0, 1100.0, 1200.0, 1300.0, float("inf")], strict=True))
    found = times.estimates(Problem(M=1024), lucky)
    assert min(lucky, key=lucky.get) == configs[1]
    assert min(found, key=found.get) == configs[0]
    assert found[configs[5]] == float("inf")


def test_flashinfer_ranks_the_shortlist_by_estimates(tool, layers):
    patch_flashinfer(budget=4, store=False)
    tuner = AutoTuner()
    tuner.is_tuning_mode = True
    (m, k, n), times = next(iter(layers[0].items()))
    inputs = [torch.empty(m, k, device="meta"), torch.empty(k, n, device="meta")]
    found = tuner.rank_tactics("gemm", [tool.runner], TuningConfig(), inputs, k=3)
    assert found[0] == min(times, key=times.get)
    assert len(set(found)) == 3


def test_flashinfer_tactics_may_be_any_sequence(tool):
    """Numbers, of which FlashInfer's filter passes on what a runner returns."""
    undo = patch_flashinfer(budget=4, store=False)
    blocklist = TacticsBlocklist()
    assert blocklist.filter("gemm", tool.runner, range(6)) == [*range(6)] * 2
    assert blocklist.filter("gemm", tool.runner, ()) == []
    undo()
    assert blocklist.filter("gemm", tool.runner, range(6)) == range(6)


def test_profile_of_another_tactic_is_timed(tool):
    patch_flashinfer(budget=4, store=False)
    tool.tune()
    inputs = [torch.empty(64, 256, device="meta"), torch.empty(256, 256, device="meta")]
    asked = [AutoTuner()._profile_single_kernel(tool.runner, inputs, TACTICS[5], None)] * 2
    assert asked == [time_of(64, TACTICS[5])] * 2


def test_flashinfer_first_rank_decides(tmp_path, monkeypatch, pytestconfig):
    """Two ranks whose clocks differ, and one of which remembers other times."""
    monkeypatch.syspath_prepend(pytestconfig.rootpath)  # the ranks import this file
    torch.multiprocessing.spawn(tune_on_a_rank, (str(tmp_path),), nprocs=2)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert sum(first["timed"]) < 10 * len(TACTICS)


def tune_on_a_rank(rank, folder):
    import torch.distributed as dist
    from flashinfer.autotuner import set_autotune_process_group

    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    tool = RecordedFlashInfer(recorded_layers(), noise=0.2, seed=rank)
    clock = AutoTuner._profile_single_kernel

    def averaged(*args, **named):  # as FlashInfer's own
        time = torch.tensor([clock(*args, **named)], dtype=torch.float64)
        dist.all_reduce(time)
        return time.item() / 2

    AutoTuner._profile_single_kernel = averaged
    store = f"{folder}/{rank}.db"
    if rank:  # other times than the first rank remembers
        patch_flashinfer(budget=6, store=store)()
    set_autotune_process_group(dist.group.WORLD)
    patch_flashinfer(budget=4, store=store)
    chosen = [[*size, *tactic] for size, tactic in tool.choices().items()]
    Path(folder, f"{rank}.json").write_text(json.dumps({"timed": numbers(tool), "chosen": chosen}))


def test_flashinfer_store_keeps_failures(tool, layers):
    for layer in layers:
        for times in layer.values():
            times.update({t: float("inf") for t in TACTICS if t[0] == 64})
    patch_flashinfer(budget=6, store=False)
    tool.tune()
    later = [t for times in list(tool.timed.values())[2:] for t in times]
    assert later
    assert not [t for t in later if t[0] == 64]


def test_patch_other_version_is_an_error(tool, monkeypatch):
    monkeypatch.delattr(AutoTuner, "_prepare_input_tensors")
    with pytest.raises(UsageError, match=r"needs FlashInfer 0\.7\.2"):
        patch_flashinfer()
    monkeypatch.setitem(sys.modules, "flashinfer.autotuner", None)
    with pytest.raises(UsageError, match="the installed one differs"):
        patch_flashinfer()


def test_patch_twice_is_an_error(tool):
    undo = patch_flashinfer()
    with pytest.raises(UsageError, match="already patched"):
        patch_flashinfer()
    undo()


def test_flashinfer_is_patched_by_the_environment(tool, monkeypatch):
    real = TacticsBlocklist.filter
    monkeypatch.delenv(doors.FLASHINFER_VARIABLE, raising=False)
    doors.patch_server()
    assert TacticsBlocklist.filter is real
    for wrong in ("many", "2", "-4"):
        monkeypatch.setenv(doors.FLASHINFER_VARIABLE, wrong)
        with pytest.warns(ForetuneWarning, match="tunes without Foretune"):
            doors.patch_server()
    assert TacticsBlocklist.filter is real
    monkeypatch.setenv(doors.FLASHINFER_VARIABLE, "4")
    doors.patch_server()
    assert TacticsBlocklist.filter is not real


def test_patch_small_budget_is_an_error():
    with pytest.raises(UsageError, match="3 or more"):
        patch_flashinfer(budget=2)
