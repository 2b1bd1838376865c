"""Plans by rooflines, without measured tables: `plan/serve/planner.py`, and the command."""

import dataclasses
import json

import numpy as np
import pytest

from foretune.cli import main
from foretune.errors import UsageError
from foretune.plan import (
    Formats,
    PlanRequest,
    Requirements,
    Workload,
    describe_model,
    find_system,
    plan,
)
from foretune.plan.cost.memory import max_requests
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.describe.layout import Speculation
from foretune.plan.serve.arrivals import IDENTITY, LoadCurve
from foretune.plan.serve.deployments.deployment_steps import prompt_ms
from foretune.plan.serve.explanation import sentences
from foretune.plan.serve.ranking import rank

MODEL = "meta-llama/Llama-3.1-70B"
SYSTEM = "h100_sxm"
LOAD = Workload(2048, 256)


PLANS = {}
"""Plans that several tests look at, by what was asked."""


def planned(gpus=8, systems=None, model=MODEL, **options):
    """The plan of a request, by rooflines; made once."""
    systems = tuple(systems or [find_system(SYSTEM)])
    options = {"workload": LOAD} | options
    asked = repr((gpus, systems, model, options))
    if asked not in PLANS:
        request = PlanRequest(model=describe_model(model), systems=systems, gpus=gpus, **options)
        PLANS[asked] = plan(request, StepTimerFactory(None))
    return PLANS[asked]


def test_plan_best_is_on_front_and_within_limits():
    made = planned(requirements=Requirements(tpot_ms=25.0))
    best = made.best
    assert best["keeps"]
    assert best["tpot_ms"] <= 25.0
    assert best["tokens_per_s_per_gpu"] == made.pareto["tokens_per_s_per_gpu"].max()
    assert (made.candidates["tokens_per_s_per_gpu"] > 0).all()


def test_plan_uses_all_gpus_within_memory():
    table = planned().candidates
    system = find_system(SYSTEM)
    assert (table["tp"] * table["pp"] * table["dp"] * table["replicas"] == 8).all()
    assert (table["memory_gib"] <= system.memory_gib).all()


def test_plan_accuracy_limit_excludes_formats():
    table = planned(requirements=Requirements(accuracy=0.999)).candidates
    lossy = table["accuracy"] < 0.999
    assert lossy.any()
    assert not table[lossy]["keeps"].any()


def test_plan_more_bandwidth_is_never_slower():
    system = find_system(SYSTEM)
    device = system.device
    specs = {**device.specs, "memory_gbps": 2 * device.specs["memory_gbps"]}
    faster = dataclasses.replace(system, device=dataclasses.replace(device, specs=specs))
    slow, fast = (planned(systems=[s], formats=(Formats("bf16"),)) for s in (system, faster))
    assert (fast.candidates["tpot_ms"] <= slow.candidates["tpot_ms"] * (1 + 1e-9)).all()


def test_plan_too_large_model_reports_needed_memory():
    says = r"does not fit on 1 × h100_sxm \(79 GiB each, 71 of them usable\): .* \d+ GiB"
    with pytest.raises(UsageError, match=says):
        planned(gpus=1, formats=(Formats("bf16"),))


def test_plan_too_large_model_counts_drafter_and_offloads_only_weights():
    drafts = Speculation(1, 0.7, describe_model(MODEL))
    with pytest.raises(UsageError, match=r"at least 14\d GiB per GPU; use .* smaller --formats$"):
        planned(
            1,
            [find_system("l40s")],
            formats=(Formats("bf16"),),
            model="Qwen/Qwen3-8B",
            speculation=drafts,
        )
    with pytest.raises(UsageError, match=r"use .* smaller --formats$"):
        planned(1, workload=Workload(10**8, 1))


def test_plan_impossible_limit_reports_nearest_value():
    with pytest.raises(UsageError, match=r"at best .* ms per further token instead of 0\.001"):
        _ = planned(requirements=Requirements(tpot_ms=0.001)).best


def test_plan_several_systems_best_wins_and_small_ones_are_excluded():
    systems = [find_system(name) for name in ("h100_sxm", "b200_sxm", "l4")]
    made = planned(1, systems, formats=(Formats("fp8"),))
    alone = {
        name: planned(1, [find_system(name)], formats=(Formats("fp8"),)).best
        for name in made.candidates["system"].unique()
    }
    assert set(made.excluded_systems) == {"l4"}
    assert "does not fit on 1 × l4" in made.excluded_systems["l4"]
    assert made.best["system"] == max(alone, key=lambda n: alone[n]["tokens_per_s_per_gpu"])


def test_plan_goal_decides():
    cheap, quick = (
        planned(requirements=Requirements(goal=goal)).best for goal in ("cost", "latency")
    )
    frugal = planned(requirements=Requirements(goal="energy")).best
    assert cheap["usd_per_million_tokens"] <= quick["usd_per_million_tokens"]
    assert quick["tpot_ms"] <= cheap["tpot_ms"]
    assert frugal["energy_mj_per_token"] <= min(
        cheap["energy_mj_per_token"], quick["energy_mj_per_token"]
    )


def test_plan_no_step_is_faster_than_roofline():
    assert planned().candidates["bound_share"].between(0.01, 1.0).all()


def test_plan_energy_is_power_times_time():
    table = planned().candidates
    busy_s = table["gpus"] / (table["requests_per_s"] * LOAD.osl)
    joules = table["power_w"] * busy_s
    assert table["energy_mj_per_token"].to_numpy() == pytest.approx(1e3 * joules.to_numpy())
    limit = find_system(SYSTEM).power_limit_w
    assert table["power_w"].between(0.0, limit).all()


def test_plan_low_rate_costs_idle_energy():
    made = planned(rate=0.2)
    table = made.candidates
    joules = table["power_w"] * table["gpus"] / (0.2 * LOAD.osl)
    assert table["energy_mj_per_token"].to_numpy() == pytest.approx(1e3 * joules.to_numpy())
    full = planned().candidates
    assert table["power_w"].median() < full["power_w"].median()


def test_plan_rate_replica_has_memory_for_bursts():
    made = planned(requirements=Requirements(tpot_ms=50.0), rate=2.0)
    best = made.best
    most = max_requests(
        describe_model(MODEL),
        made.deployment(best).layout,
        made.deployment(best).formats,
        LOAD,
        find_system(SYSTEM).memory_gib,
    )
    assert best["batch"] < made.deployment(best).concurrency
    assert made.deployment(best).concurrency == min(most, 1024)


def test_plan_rate_fewer_replicas_miss_limits():
    requirements = Requirements(tpot_ms=25.0)
    best = planned(requirements=requirements, rate=3.0, formats=(Formats("fp8"),)).best
    every = planned(requirements=requirements, formats=(Formats("fp8"),))
    loads = every.candidates[(every.candidates[IDENTITY] == best[IDENTITY]).all(axis=1)]
    curve = LoadCurve(loads, LOAD.osl, requirements)
    if best["replicas"] > 1:
        fewer = curve.at(3.0 / (best["replicas"] - 1))
        assert fewer is None or fewer.goodput_share < 0.9 or fewer.tpot_ms > 25.0
    assert curve.at(3.0 / best["replicas"]).goodput_share >= 0.9


def test_plan_goal_without_data_is_refused():
    system = dataclasses.replace(find_system(SYSTEM), price_per_hour=None)
    with pytest.raises(UsageError, match="add one with --prices"):
        _ = planned(systems=[system], requirements=Requirements(goal="cost")).best


def test_plan_rate_takes_fewest_gpus():
    few, many = (planned(requirements=Requirements(tpot_ms=50.0), rate=rate) for rate in (0.5, 4.0))
    assert few.best["gpus"] <= many.best["gpus"] <= 8
    assert few.best["good"] >= 0.9
    assert few.best["requests_per_s"] == 0.5
    assert not few.candidates.duplicated(["formats", "tp", "pp", "dp", "ep"]).any()
    with pytest.raises(UsageError, match="requests per second are too many: these GPUs sustain"):
        planned(rate=1e5)


def test_plan_goodput_is_below_throughput():
    made = planned(requirements=Requirements(tpot_ms=30.0))
    assert 0 < made.goodput <= made.candidates["requests_per_s"].max()


def test_plan_pools_finish_no_more_than_prefill_allows():
    made = planned(pools=True)
    pooled = made.candidates[made.candidates["prefill"] != ""]
    deployments = [made.deployment(row) for _, row in pooled.iterrows()]
    readers = [dataclasses.replace(d, layout=d.pools.prefill, pools=None) for d in deployments]
    _, each_ms = prompt_ms(readers, StepTimerFactory(None))
    workers = np.array([d.pools.prefill_workers for d in deployments])
    assert (pooled["requests_per_s"] <= 1.001 * 1e3 * workers / each_ms).all()


def test_plan_separate_pools_compete_with_one_pool():
    made = planned(pools=True)
    pooled = made.candidates[made.candidates["prefill"] != ""]
    assert not pooled.empty
    assert (pooled["gpus"] <= 8).all()
    assert made.best_one_pool["prefill"] == ""
    one = planned().best
    assert made.best["tokens_per_s_per_gpu"] >= one["tokens_per_s_per_gpu"]


def test_plan_next_faster_and_runner_up():
    made = planned(requirements=Requirements(tpot_ms=40.0))
    best = made.best
    assert made.next_faster["tpot_ms"] <= 0.95 * best["tpot_ms"]
    assert (made.runner_up[IDENTITY] != best[IDENTITY]).any()
    assert made.runner_up["tokens_per_s_per_gpu"] <= best["tokens_per_s_per_gpu"]


def test_plan_command_json(capsys, monkeypatch, tmp_path):
    from foretune.plan.cost import tables as operator_tables

    monkeypatch.setattr(operator_tables, "default_folders", list)
    command = ["plan", MODEL, "--system", SYSTEM, "--gpus", "8", "--isl", "2048", "--osl", "256"]
    main([*command, "--tpot", "40", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["best"]["tpot_ms"] <= 40
    assert {"tp", "pp", "dp", "ep", "formats", "batch", "ttft_ms", "memory_gib"} <= set(
        answer["pareto"][0]
    )
    assert any("pipelines (pp > 1)" in note for note in answer["notes"])


def test_plan_command_drafts_tokens_and_writes_manifest(capsys, monkeypatch, tmp_path):
    from foretune.plan.cost import tables as operator_tables

    monkeypatch.setattr(operator_tables, "default_folders", list)
    file = tmp_path / "manifest.json"
    command = ["plan", MODEL, "--system", SYSTEM, "--gpus", "8", "--isl", "2048", "--osl", "256"]
    drafted = ["--speculative", "2:0.6:Llama-3.2-1B"]
    assert main([*command, *drafted, "--kubernetes", str(file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["screened"] == []
    assert "1.96 tokens per step" in answer["question"]["speculative"]
    assert any("1.96 tokens per step" in line for line in answer["sentences"])
    assert "draft_model" in answer["commands"]["vllm"]
    (pod,) = (i for i in json.loads(file.read_text())["items"] if i["kind"] == "Deployment")
    (container,) = pod["spec"]["template"]["spec"]["containers"]
    assert "--speculative-config" in container["command"]
    assert pod["spec"]["replicas"] == answer["best"]["replicas"]
    assert main([*command, "--kubernetes", str(tmp_path / "no" / "pod.json")]) == 1
    assert "cannot write" in capsys.readouterr().err
    assert main([*command, "--speculative", "2:0.6"]) == 2
    assert "has no layers that draft tokens" in capsys.readouterr().err


def test_plan_requested_caches():
    narrow = planned(caches=("nvfp4", "int4_head"))
    assert {d.formats.kv for d in narrow.deployments} == {"nvfp4", "int4_head"}
    assert {d.formats.weights for d in narrow.deployments} == {
        d.formats.weights for d in planned().deployments
    }
    assert {d.formats.kv for d in planned().deployments} == {"bf16", "fp8"}


def test_plan_command_narrow_cache(capsys, monkeypatch):
    from foretune.plan.cost import tables as operator_tables

    monkeypatch.setattr(operator_tables, "default_folders", list)
    command = ["plan", MODEL, "--gpus", "8", "--isl", "2048", "--osl", "32", "--json"]
    formats = ["--formats", "fp8,nvfp4/fp8,/nvfp4"]
    assert main([*command, "--system", "b200_sxm", *formats, "--backend", "trtllm"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["best"]["formats"] in ("fp8, nvfp4 cache", "nvfp4, fp8 cache")
    assert {line["formats"] for line in answer["pareto"]} <= {
        "fp8, nvfp4 cache",
        "nvfp4, fp8 cache",
    }
    assert any("attention on nvfp4 caches was not measured" in note for note in answer["notes"])
    narrow = ["--formats", "/fp4_e2m1,/fp8", "--backend", "trtllm", "--for", "latency"]
    assert main([*command, "--system", "b200_sxm", *narrow]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {line["guessed"] for line in answer["pareto"] if "e2m1" in line["formats"]} <= {1.0}
    assert main([*command, "--system", "b200_sxm", "--formats", "/int4_heat"]) == 2
    assert "did you mean 'int4_head'" in capsys.readouterr().err


def test_plan_command_unknown_system_suggests_nearest(capsys):
    command = ["plan", "--gpus", "8", "--isl", "128", "--osl", "16"]
    assert main([*command, MODEL, "--system", "h100_sxn"]) == 2
    assert "did you mean 'h100_sxm'" in capsys.readouterr().err


def test_plan_more_pipeline_stages_keep_throughput():
    """At as many requests per GPU, stages cost no throughput but what joins them."""
    table = planned(8, formats=(Formats("fp8", kv="fp8"),)).candidates
    most = {
        pp: table[(table["tp"] == 1) & (table["pp"] == pp) & (table["replicas"] == 8 // pp)]
        for pp in (2, 4, 8)
    }
    best = {pp: rows["tokens_per_s_per_gpu"].max() for pp, rows in most.items()}
    assert best[8] > 0.6 * best[2]
    assert best[4] > 0.8 * best[2]


@pytest.mark.parametrize(("gain", "native"), [(0.03, True), (0.2, False)])
def test_plan_requantizes_only_for_enough_gain(gain, native):
    made = planned(1, formats=(Formats("bf16"), Formats("fp8")), model="Qwen/Qwen3-8B")
    table = made.candidates.copy()
    own = table["native"]
    assert own.any()
    assert not own.all()
    per_s = "tokens_per_s_per_gpu"
    table.loc[~own, per_s] *= (1 + gain) * table[own][per_s].max() / table[~own][per_s].max()
    assert dataclasses.replace(made, candidates=table).best["native"] == native


def with_guesses(made, guesses):
    """Return a plan some of whose candidates lie outside what was measured, the others inside."""
    table = made.candidates.assign(guessed=np.where(guesses, 0.9, 0.1))
    return dataclasses.replace(made, candidates=table)


def test_plan_extrapolated_best_has_best_measured_beside_it():
    made = planned(requirements=Requirements(tpot_ms=40.0))
    table = made.candidates
    per_s = "tokens_per_s_per_gpu"
    guessed = table[per_s] > 0.8 * table[table["keeps"]][per_s].max()
    extrapolated = with_guesses(made, guessed)
    assert extrapolated.best["number"] == made.best["number"]
    measured = extrapolated.best_measured
    assert measured["keeps"]
    assert measured[per_s] == table[~guessed & table["keeps"]][per_s].max()
    assert any(line.startswith("covered by measurements: ") for line in sentences(extrapolated))


@pytest.mark.parametrize("all_extrapolated", [False, True])
def test_plan_best_measured_is_none_if_all_or_best_are_measured(all_extrapolated):
    made = planned(requirements=Requirements(tpot_ms=40.0))
    plan = with_guesses(made, np.full(len(made.candidates), all_extrapolated))
    assert plan.best["number"] == made.best["number"]
    assert plan.best_measured is None


def test_plan_rate_too_little_goodput_is_infeasible():
    table = planned(requirements=Requirements(tpot_ms=25.0), rate=4.0).candidates
    late = table["good"] < 0.9
    assert late.any()
    assert not table[late]["keeps"].any()
    made = planned(requirements=Requirements(tpot_ms=25.0), rate=4.0)
    none = made.candidates[late & (table["tpot_ms"] <= 25.0)]
    with pytest.raises(UsageError, match=r"at this rate, at most \d\d % of the requests"):
        _ = dataclasses.replace(made, candidates=none).best


def test_plan_without_best_has_headline():
    """Printing and hashing need it."""
    unpriced = dataclasses.replace(find_system(SYSTEM), price_per_hour=None)
    made = planned(systems=[unpriced], requirements=Requirements(goal="cost"))

    assert "candidates are feasible, none is best: these systems have no known price" in repr(made)
    assert hash(made) == hash(made)
    with pytest.raises(UsageError, match="no known price"):
        _ = made.best


def test_plan_goodput_with_rate_is_unknown():
    made = planned(rate=1.0)

    assert np.isnan(made.goodput)


def test_rank_leaves_its_input_alone():
    made = planned()
    predicted = made.candidates.drop(columns=["number", "good", "sure", "keeps", "pareto"])
    columns = list(predicted)

    rank(predicted, made.request, corrected=False)

    assert list(predicted) == columns
