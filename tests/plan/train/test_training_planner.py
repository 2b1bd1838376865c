"""The planner of training and its command, by rooflines alone."""

import dataclasses

import numpy as np
import pytest

from foretune.errors import UsageError
from foretune.plan import describe_model, find_system
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.train.recipe import TrainingTask
from foretune.plan.train.training_memory import USABLE_SHARE
from foretune.plan.train.training_planner import STEP_PARTS, plan_training

MODEL = "Qwen/Qwen3-32B"
H100 = find_system("h100_sxm")
TASK = TrainingTask(128, 4096)


def planned(model=MODEL, gpus=32, task=TASK, system=H100, offload=0.0):
    return plan_training(
        describe_model(model), system, gpus, task, StepTimerFactory(None), offload=offload
    )


def test_plan_training_best_is_fastest_that_fits():
    made = planned()
    table = made.candidates
    assert made.best["step_ms"] == table["step_ms"].min()
    assert (table["memory_gib"] <= USABLE_SHARE * H100.memory_gib).all()
    assert (table["tp"] * table["pp"] * table["dp"] * table["cp"] == 32).all()
    assert len(table) < made.recipes_considered
    assert made.limited_by in STEP_PARTS
    assert not table["offload"].any()
    assert table["mfu"].between(0, 1).all()


def test_days_and_cost():
    made = planned()
    steps = 1e9 / (128 * 4096)
    assert made.days(1e9) == pytest.approx(steps * made.best["step_ms"] / 1e3 / 86400)
    assert made.cost(1e9) == pytest.approx(made.days(1e9) * 24 * 32 * H100.price_per_hour)
    unpriced = dataclasses.replace(H100, price_per_hour=None)
    assert np.isnan(planned(system=unpriced).cost(1e9))


def test_more_memory_is_never_infeasible_or_slower():
    large = dataclasses.replace(H100, memory_gib=2 * H100.memory_gib)
    small = planned()
    more = planned(system=large)
    assert len(more.candidates) >= len(small.candidates)
    assert more.best["step_ms"] <= small.best["step_ms"]


def test_plan_training_offloads_if_nothing_else_fits():
    made = planned(gpus=4, task=TrainingTask(16, 2048))
    assert made.candidates["offload"].all()


def test_plan_training_offload_limit():
    task = TrainingTask(16, 2048)
    made = planned(gpus=4, task=task, offload=100.0)
    assert made.candidates["offload"].all()
    assert (made.candidates["offloaded_gib"] <= 100.0).all()
    assert made.best["offloaded_gib"] > 10
    with pytest.raises(UsageError, match="does not fit"):
        planned(gpus=4, task=task, offload=1.0)
    both = planned(offload=8.0).candidates
    assert set(both["offload"]) == {True, False}
    plain = both[~both["offload"]].reset_index(drop=True)
    assert plain["step_ms"].tolist() == planned().candidates["step_ms"].tolist()
    with pytest.raises(UsageError, match="give 0 or more"):
        planned(offload=-1.0)


def test_eight_bits_are_faster_where_they_are_multiplied():
    wide = planned()
    narrow = planned(task=dataclasses.replace(TASK, precision="fp8"))
    assert narrow.best["step_ms"] < wide.best["step_ms"]
    with pytest.raises(UsageError, match="a100_sxm has no fp8 units: train in bf16"):
        planned(task=dataclasses.replace(TASK, precision="fp8"), system=find_system("a100_sxm"))


def test_plan_training_too_large_names_what_would_fit():
    with pytest.raises(
        UsageError,
        match=r"does not fit on 8 × h100_sxm .* at least \d+ GiB; it "
        r"fits on (16|32|64|128|256)",
    ):
        planned("meta-llama/Meta-Llama-3.1-405B", gpus=8, task=TrainingTask(512, 4096))


def test_plan_training_indivisible_batch_names_alternatives():
    with pytest.raises(
        UsageError,
        match=r"a batch of 127 cannot be divided over 1024 GPUs: "
        r"try --batch 128",
    ):
        planned(gpus=1024, task=TrainingTask(127, 4096))


def test_gpus_that_no_stages_and_heads_use_up_are_replicas():
    with pytest.raises(UsageError, match="over 37 GPUs: try --batch 37"):
        planned("Qwen/Qwen3-8B", gpus=37, task=TrainingTask(36, 2048))


@pytest.fixture
def without_tables(monkeypatch):
    from foretune.plan.cost import tables as operator_tables

    monkeypatch.setattr(operator_tables, "default_folders", list)
