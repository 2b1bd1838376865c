"""The planner of training and its command, by rooflines alone."""

import dataclasses
import json

import numpy as np
import pytest

from foretune.cli.training import show_training_plan
from foretune.errors import UnknownName, UsageError
from foretune.plan import describe_model, find_system
from foretune.plan.cost.clocks import OperatorClocks
from foretune.plan.train import TrainingTask, plan_training
from foretune.plan.train.memory import USABLE
from foretune.plan.train.planner import LIMITS

MODEL, H100 = "Qwen/Qwen3-32B", find_system("h100_sxm")
TASK = TrainingTask(128, 4096)


def planned(model=MODEL, gpus=32, task=TASK, system=H100):
    return plan_training(describe_model(model), system, gpus, task, OperatorClocks(None))


def test_the_best_is_the_fastest_that_fits():
    made = planned()
    table = made.candidates
    assert made.best["step_ms"] == table["step_ms"].min()
    assert (table["memory_gib"] <= USABLE * H100.memory_gib).all()
    assert (table["tp"] * table["pp"] * table["dp"] * table["cp"] == 32).all()
    assert len(table) < made.looked_at
    assert made.limited_by in LIMITS
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
    small, more = planned(), planned(system=large)
    assert len(more.candidates) >= len(small.candidates)
    assert more.best["step_ms"] <= small.best["step_ms"]


def test_the_host_helps_out_where_nothing_else_does():
    made = planned(gpus=4, task=TrainingTask(16, 2048))
    assert made.candidates["offload"].all()


def test_eight_bits_are_faster_where_they_are_multiplied():
    wide, narrow = planned(), planned(task=dataclasses.replace(TASK, precision="fp8"))
    assert narrow.best["step_ms"] < wide.best["step_ms"]
    with pytest.raises(UsageError, match="a100_sxm does not multiply in fp8: train in bf16"):
        planned(task=dataclasses.replace(TASK, precision="fp8"), system=find_system("a100_sxm"))


def test_what_fits_nowhere_says_what_would():
    with pytest.raises(UsageError, match=r"fits nowhere on 8 × h100_sxm .* at least \d+ GiB; it "
                       r"fits on (16|32|64|128|256)"):  # fmt: skip
        planned("meta-llama/Meta-Llama-3.1-405B", gpus=8, task=TrainingTask(512, 4096))


def test_a_batch_that_cannot_be_divided_says_which_can():
    with pytest.raises(UsageError, match=r"a batch of 127 cannot be divided over 1024 GPUs: "
                       r"try --batch 128"):  # fmt: skip
        planned(gpus=1024, task=TrainingTask(127, 4096))


def test_gpus_that_no_stages_and_heads_use_up_are_replicas():
    with pytest.raises(UsageError, match="over 37 GPUs: try --batch 37"):
        planned("Qwen/Qwen3-8B", gpus=37, task=TrainingTask(36, 2048))


@pytest.fixture
def without_tables(monkeypatch):
    from foretune.plan.cost import tables as operator_tables

    monkeypatch.setattr(operator_tables, "default_folders", list)


def test_the_command_shows_a_table(capsys, without_tables):
    show_training_plan(MODEL, "h100", 32, 128, 4096, tokens=1e12, top=3)
    shown = capsys.readouterr().out
    assert "training Qwen/Qwen3-32B on 32 × h100_sxm, 128 × 4096 tokens, bf16" in shown
    for part in ("days", "USD", "GiB of the fullest GPU", "rooflines"):
        assert part in shown


def test_the_command_answers_in_json(capsys, without_tables):
    show_training_plan(MODEL, "h100", 32, 128, 4096, precision="fp8", top=2, as_json=True)
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["candidates"]) == 2
    assert answer["best"]["step_ms"] == answer["candidates"][0]["step_ms"]
    assert {
        "tp",
        "pp",
        "dp",
        "cp",
        "ep",
        "chunks",
        "zero",
        "recompute",
        "mfu",
        "memory_gib",
    } <= set(answer["best"])
    assert "days" not in answer


def test_systems_that_nobody_measured_are_said_to_be(capsys, tmp_path):
    import pandas as pd

    folder = tmp_path / "h100_sxm" / "gemm" / "sglang" / "1.0"
    folder.mkdir(parents=True)
    sizes = [(m, n, k) for m in (256, 4096) for n in (1024, 8192) for k in (1024, 8192)]
    table = pd.DataFrame(sizes, columns=["m", "n", "k"])
    work = 2.0 * table["m"] * table["n"] * table["k"] / 5e11
    table.assign(gemm_dtype="bfloat16", kernel_source="x", latency=0.01 + work).to_parquet(
        folder / "gemm_perf.parquet"
    )
    for system, said in (("mi300x", True), ("h100", False)):
        show_training_plan("Qwen/Qwen3-8B", system, 8, 16, 2048, operators=tmp_path)
        assert ("no operator was measured" in capsys.readouterr().out) == said


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": "Qwen/Qwen3-23B"}, UnknownName, "did you mean"),
        ({"system": "h100_sxn"}, UnknownName, "did you mean 'h100_sxm'"),
        ({"precision": "fp7"}, UnknownName, "known: bf16, fp8"),
        ({"software": "jax"}, UnknownName, "known: megatron, pytorch"),
        ({"gpus": 0}, UsageError, "--gpus"),
        ({"batch": 0}, UsageError, "--batch"),
        ({"sequence": -1}, UsageError, "--sequence"),
    ],
)
def test_bad_requests(without_tables, change, error, message):
    request = {"model": MODEL, "system": "h100", "gpus": 8, "batch": 64, "sequence": 2048}
    with pytest.raises(error, match=message):
        show_training_plan(**{**request, **change})
