"""The planner: every way to serve a model, by rooflines alone, so that no table is needed."""

import dataclasses
import json

import pytest

from foretune.cli import main
from foretune.errors import UsageError
from foretune.tune.plan import Formats, Wish, Workload, describe_model, find_system, plan
from foretune.tune.plan.clocks import OperatorClocks
from foretune.tune.plan.planner import IDENTITY

MODEL, SYSTEM = "meta-llama/Llama-3.1-70B", "h100_sxm"
LOAD = Workload(2048, 256)


def planned(gpus=8, system=None, wish=None, formats=None, model=MODEL, **more):
    clocks = OperatorClocks(None)
    return plan(
        describe_model(model), system or find_system(SYSTEM), gpus, LOAD, clocks, wish,
        formats=formats, **more,
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
    with pytest.raises(
        UsageError, match=r"the nearest is .* ms per further token instead of 0\.001"
    ):
        _ = planned(wish=Wish(tpot_ms=0.001)).best


def test_of_several_systems_the_best_counts_and_those_too_small_are_named():
    systems = [find_system(name) for name in ("h100_sxm", "b200_sxm", "l4")]
    made = planned(1, systems, formats=[Formats("fp8")])
    alone = {
        name: planned(1, find_system(name), formats=[Formats("fp8")]).best
        for name in made.candidates["system"].unique()
    }
    assert set(made.refused) == {"l4"}
    assert "fits nowhere on 1 × l4" in made.refused["l4"]
    assert made.best["system"] == max(alone, key=lambda n: alone[n]["tokens_per_s_per_gpu"])


def test_the_goal_decides():
    cheap, quick = (planned(wish=Wish(goal=goal)).best for goal in ("cost", "latency"))
    frugal = planned(wish=Wish(goal="energy")).best
    assert cheap["usd_per_million_tokens"] <= quick["usd_per_million_tokens"]
    assert quick["tpot_ms"] <= cheap["tpot_ms"]
    assert frugal["energy_mj_per_token"] <= min(
        cheap["energy_mj_per_token"], quick["energy_mj_per_token"]
    )


def test_energy_is_power_times_time():
    table = planned().candidates
    busy_s = table["gpus"] / (table["requests_per_s"] * LOAD.osl)
    joules = table["power_w"] * busy_s
    assert table["energy_mj_per_token"].to_numpy() == pytest.approx(1e3 * joules.to_numpy())
    limit = find_system(SYSTEM).power_limit_w
    assert table["power_w"].between(0.0, limit).all()


def test_at_a_rate_the_fewest_gpus_are_sought():
    few, many = (planned(wish=Wish(tpot_ms=50.0), rate=rate) for rate in (0.5, 4.0))
    assert few.best["gpus"] <= many.best["gpus"] <= 8
    assert few.best["good"] >= 0.9
    assert few.best["requests_per_s"] == 0.5
    assert not few.candidates.duplicated(["formats", "tp", "pp", "dp", "ep"]).any()
    with pytest.raises(UsageError, match="requests per second are too many: these GPUs finish"):
        planned(rate=1e5)


def test_what_arrives_at_random_is_less_than_what_is_kept_in_flight():
    made = planned(wish=Wish(tpot_ms=30.0))
    assert 0 < made.goodput <= made.candidates["requests_per_s"].max()


def test_pools_of_their_own_compete_with_one():
    made = planned(pools=True)
    pooled = made.candidates[made.candidates["prefill"] != ""]
    assert not pooled.empty
    assert (pooled["gpus"] <= 8).all()
    assert made.best_of_one_pool["prefill"] == ""
    one = planned().best
    assert made.best["tokens_per_s_per_gpu"] >= one["tokens_per_s_per_gpu"]


def test_a_step_up_is_faster_and_a_runner_up_is_another():
    made = planned(wish=Wish(tpot_ms=40.0))
    best = made.best
    assert made.step_up["tpot_ms"] <= 0.95 * best["tpot_ms"]
    assert (made.runner_up[IDENTITY] != best[IDENTITY]).any()
    assert made.runner_up["tokens_per_s_per_gpu"] <= best["tokens_per_s_per_gpu"]


def test_too_many_candidates_are_searched(monkeypatch):
    from foretune.tune.plan import planner, searching

    whole = planned()
    monkeypatch.setattr(planner, "ALL", 100)
    monkeypatch.setattr(searching, "GENERATION", 50)
    monkeypatch.setattr(searching, "GENERATIONS", 6)
    some = planned()
    assert len(some.deployments) == len(some.candidates) < len(whole.candidates)
    assert some.best["tokens_per_s_per_gpu"] >= 0.8 * whole.best["tokens_per_s_per_gpu"]
    row = some.best
    assert some.deployment(row).layout.tp == row["tp"]


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
