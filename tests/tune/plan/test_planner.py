"""The planner: every way to serve a model, by rooflines alone, so that no table is needed."""

import dataclasses
import json

import pytest

from foretune.cli import main
from foretune.errors import UsageError
from foretune.tune.plan import Formats, Wish, Workload, describe_model, find_system, plan
from foretune.tune.plan.clocks import OperatorClocks

MODEL, SYSTEM = "meta-llama/Llama-3.1-70B", "h100_sxm"
LOAD = Workload(2048, 256)


def planned(gpus=8, system=None, wish=None, formats=None, model=MODEL):
    clocks = OperatorClocks(None)
    return plan(
        describe_model(model), system or find_system(SYSTEM), gpus, LOAD, clocks, wish,
        formats=formats,
    )  # fmt: skip


def test_the_best_is_on_the_front_and_keeps_to_the_limits():
    made = planned(wish=Wish(tpot_ms=25.0))
    best = made.best
    assert best["keeps"]
    assert best["tpot_ms"] <= 25.0
    assert best["tokens_per_s_per_gpu"] == made.pareto["tokens_per_s_per_gpu"].max()
    assert (made.candidates["tokens_per_s_per_gpu"] > 0).all()


def test_all_gpus_are_used_and_memory_suffices():
    table = planned().candidates
    system = find_system(SYSTEM)
    assert (table["tp"] * table["pp"] * table["dp"] * table["replicas"] == 8).all()
    assert (table["memory_gib"] <= system.memory_gib).all()


def test_a_limit_on_quality_rules_formats_out():
    table = planned(wish=Wish(accuracy=0.999)).candidates
    lossy = table["accuracy"] < 0.999
    assert lossy.any()
    assert not table[lossy]["keeps"].any()


def test_more_bandwidth_is_never_slower():
    system = find_system(SYSTEM)
    device = system.device
    specs = {**device.specs, "memory_gbps": 2 * device.specs["memory_gbps"]}
    faster = dataclasses.replace(system, device=dataclasses.replace(device, specs=specs))
    slow, fast = (planned(system=s, formats=[Formats("bf16")]) for s in (system, faster))
    assert (fast.candidates["tpot_ms"] <= slow.candidates["tpot_ms"] * (1 + 1e-9)).all()


def test_what_fits_nowhere_says_what_it_needs():
    with pytest.raises(UsageError, match=r"fits nowhere on 1 × h100_sxm .* needs at least \d+ GiB"):
        planned(gpus=1, formats=[Formats("bf16")])


def test_impossible_limits_say_what_can_be_reached():
    with pytest.raises(UsageError, match="the least time per token is"):
        _ = planned(wish=Wish(tpot_ms=0.001)).best


def test_the_command_answers_in_json(capsys, monkeypatch, tmp_path):
    from foretune.tune.plan import operator_tables

    monkeypatch.setattr(operator_tables, "default_folders", list)
    command = ["plan", MODEL, "--system", SYSTEM, "--gpus", "8", "--isl", "2048", "--osl", "256"]
    main([*command, "--tpot", "40", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["best"]["tpot_ms"] <= 40
    assert {"tp", "pp", "dp", "ep", "formats", "batch", "ttft_ms", "memory_gib"} <= set(
        answer["pareto"][0]
    )
    assert any("pipeline parallelism" in note for note in answer["notes"])


def test_unknown_names_offer_the_nearest(capsys):
    command = ["plan", "--gpus", "8", "--isl", "128", "--osl", "16"]
    assert main([*command, MODEL, "--system", "h100_sxn"]) == 2
    assert "did you mean 'h100_sxm'" in capsys.readouterr().err
