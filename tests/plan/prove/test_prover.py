"""The loop over real processes: toy servers whose times follow a law."""

import json
from dataclasses import replace

import numpy as np
import pytest
from served_toys import toy_template

from foretune.errors import UsageError
from foretune.plan import PlanRequest, Requirements, Workload
from foretune.plan.prove.command import UserCommand
from foretune.plan.prove.load import Load
from foretune.plan.prove.prediction import Promise, ServerPredictor
from foretune.plan.prove.prover import Budget, Prover
from foretune.plan.prove.saving import ProofFolder, proof_to_json
from foretune.plan.prove.server import ServerCommand, ServerProcess, free_port
from foretune.plan.prove.setting import around
from foretune.plan.prove.telling import brief_rows, sentences
from foretune.plan.prove.trial_runner import TrialLimits, TrialRunner
from foretune.search.searcher import Prior
from foretune.tune.store.fallible import FallibleStore
from foretune.tune.store.subject import Subject

LOADS = [Load(Workload(isl=16, osl=4), concurrency=n) for n in (1, 8)]
KEPT = Promise(ttft_ms=1e4, tpot_ms=1e3, tokens_per_s=1.0)
BROKEN = Promise(ttft_ms=1e-3, tpot_ms=1e-3, tokens_per_s=1e6)
SUBJECT = Subject("serve", "toy", "toy CPU", "toy 1")


@pytest.fixture
def make_prover(deployment, timers, tmp_path):
    def make(template, given=None, promise=KEPT, requirements=None, url="", **budget):
        maker = UserCommand(template)
        # The plan's own is the first of the given values.
        planned = replace(deployment, concurrency=(given or {}).get("requests", [8])[0])
        settings = around([planned], maker.knobs, given or {}, cores=2)
        runner = TrialRunner(
            maker,
            LOADS,
            vocab=1000,
            folder=tmp_path / "logs",
            limits=TrialLimits(start_s=60, run_s=60, repeats=2),
            url=url,
        )
        return Prover(
            settings=settings,
            runner=runner,
            predictor=ServerPredictor(timers),
            requirements=requirements or Requirements(),
            plan_promises=dict.fromkeys(LOADS, promise),
            budget=Budget(**{"starts": 3, "pairs": 0, **budget}),
            subject=SUBJECT,
            store=FallibleStore(tmp_path / "store.db"),
        )

    return make


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_prover_kept_promise_is_proven(make_prover):
    prover = make_prover(toy_template("--step-ms", "2"))
    proof = prover.prove()
    assert proof.is_kept
    assert len(proof.trials) == 1  # nothing to vary
    assert proof.search.reason in ("exhausted", "regret")
    assert proof.planned.figures[LOADS[0]].tokens_per_s > 0
    assert proof.planned.memory_gib > 0
    assert sentences(proof, prover.settings)[0] == "promise kept at 8 at once"


def test_prover_broken_promise_names_figures(make_prover):
    prover = make_prover(toy_template("--step-ms", "2"), promise=BROKEN)
    proof = prover.prove()
    assert not proof.is_kept
    verdict = sentences(proof, prover.settings)[0]
    assert verdict.startswith("promise broken at 8 at once: the time to the first token is ")
    assert "the throughput is" in verdict


@pytest.mark.extended
def test_prover_search_finds_more_requests(make_prover, deployment):
    """The plan starts with one slot of four; a step takes 20 ms, however full it is."""
    template = toy_template("--slots", "{requests}", "--step-ms", "40")
    prover = make_prover(template, {"requests": [1, 2, 8]}, starts=3, pairs=3)
    proof = prover.prove()
    assert proof.best.config["requests"] == 8
    assert proof.gain > 1
    assert len(proof.comparison.ratios) == 3
    # With eight slots tried, two promise less: the search stops before its third start.
    assert proof.search.reason == "regret"
    assert len(proof.trials) == 2 + 2 * 3
    assert proof.trials[1].config["requests"] == 8  # the predictor knows that it gains
    rows = brief_rows(proof, prover.settings)
    assert len(rows) == 2 * len(proof.trials)


def test_prover_later_starts_count_unplanned_memory(make_prover):
    prover = make_prover(
        toy_template("--slots", "{requests}", "--step-ms", "5"), {"requests": [1, 2]}, starts=2
    )
    proof = prover.prove()
    first, second = proof.trials
    planned_gib = prover.settings.setting(second.config).memory_gib
    unplanned = first.memory_gib - first.promised_gib
    assert second.promised_gib == pytest.approx(planned_gib + unplanned)


def test_prover_out_of_memory_corrects_memory_model(make_prover):
    """More than four slots do not fit; the best of the rest is found."""
    prover = make_prover(
        toy_template("--slots", "{requests}", "--max-slots", "4", "--step-ms", "5"),
        {"requests": [1, 2, 4, 6, 8]},
        starts=4,
    )
    proof = prover.prove()
    failed = [trial for trial in proof.trials if not trial.ok]
    assert failed
    assert all(trial.reason.startswith("out of memory") for trial in failed)
    assert proof.best is not None
    assert proof.best.config["requests"] <= 4


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        ("start", "it ended with status 1"),
        ("die", "it ended with status 3: RuntimeError: the engine died"),
        ("refuse", "no request was answered: status 400"),
    ],
)
def test_prover_plan_that_cannot_be_served_is_broken(make_prover, fail, reason):
    prover = make_prover(toy_template("--fail", fail))
    proof = prover.prove()
    assert not proof.is_kept
    assert proof.best is None
    assert proof.planned.reason.startswith(reason)
    assert "did not serve" in sentences(proof, prover.settings)[0]


def test_prover_hanging_server_costs_its_limit(make_prover):
    prover = make_prover(toy_template("--fail", "hang"))
    prover.runner.limits = TrialLimits(60, run_s=0.5, repeats=1)
    proof = prover.prove()
    assert "TimeoutError" in proof.planned.reason


def test_limits_choose_a_lower_load(make_prover):
    """At eight requests, one slot makes seven wait longer than the limit allows."""
    template = toy_template("--slots", "1", "--step-ms", "20")
    prover = make_prover(template, requirements=Requirements(ttft_ms=150))
    proof = prover.prove()
    assert not proof.is_kept
    assert proof.holds_limits  # alone, a request is in time


def test_trials_survive_and_are_used_again(make_prover):
    template = toy_template("--slots", "{requests}", "--step-ms", "20")
    given = {"requests": [1, 8]}
    first = make_prover(template, given, starts=2).prove()
    again = make_prover(template, given, starts=2)
    proof = again.prove()
    assert len(first.trials) == 2
    assert len(proof.trials) == 1  # the plan's own is started again, the other one is known


def test_answers_that_end_early_are_noticed(make_prover):
    prover = make_prover(toy_template("--fail", "short"))
    proof = prover.prove()
    assert any("ignores ignore_eos" in line for line in sentences(proof, prover.settings))


def test_prover_running_server_is_not_stopped(make_prover, tmp_path):
    port = free_port()
    command = ServerCommand(toy_template().format(port=port).split(), port=port)
    with ServerProcess(command, tmp_path / "log", grace_s=2.0) as server:
        server.wait_until_healthy(60)
        prover = make_prover(toy_template(), url=server.url)
        proof = prover.prove()
        assert proof.planned.ok
        assert len(proof.trials) == 1
        server.check_alive()
        engine = dict(proof.planned.proofs[LOADS[1]].engine)
        assert engine["cache_hit_share"] == 0.5


def test_prover_missing_running_server_is_one_line(make_prover):
    prover = make_prover(toy_template(), url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(UsageError, match="does not answer"):
        prover.prove()


def test_everything_is_in_the_folder(make_prover, tmp_path, deployment):
    request = PlanRequest(
        model=deployment.model,
        systems=(deployment.system,),
        gpus=1,
        workload=LOADS[0].workload,
    )
    folder = ProofFolder.create(tmp_path / "out", request)
    prover = make_prover(toy_template("--step-ms", "2"))
    prover.on_trial = lambda trial: folder.add(trial, {"model_id": "small", "tp": 1})
    proof = prover.prove()
    folder.finish(proof, prover.settings, title="Proof")

    (trial,) = read_lines(folder.path / "trials.jsonl")
    assert trial["loads"][1]["proven"]["tokens_per_s"]["value"] > 0
    lines = read_lines(folder.lines)
    assert [line["max_concurrency"] for line in lines] == [1, 8]
    assert lines[0]["total_output_tokens"] == 4 * lines[0]["completed"]
    assert "promise kept" in folder.report.read_text()
    answer = json.loads((folder.path / "proof.json").read_text())
    assert answer == json.loads(json.dumps(proof_to_json(proof, prover.settings)))
    assert answer["kept"]


def test_too_many_settings_are_refused(make_prover):
    prover = make_prover(toy_template("--slots", "{requests}"), {"requests": list(range(1, 2100))})
    with pytest.raises(UsageError, match="too many to predict"):
        prover.prove()


def test_prover_load_is_closed_or_open():
    with pytest.raises(UsageError):
        replace(LOADS[0], rate=1.0)


def test_prover_good_earlier_trials_do_not_replace_plans_own(make_prover):
    """They leave nothing to gain, so the search ends at once."""
    template = toy_template("--slots", "{requests}", "--step-ms", "20")
    given = {"requests": [1, 8]}
    earlier = make_prover(template, given, starts=2).prove()
    settled = make_prover(template, given, starts=2)
    settled.correct = lambda measurements: Prior(
        np.zeros(2), log_spread=1e-9, p_valid=np.ones(2), foreign=True
    )

    proof = settled.prove()

    assert proof.planned.config == earlier.planned.config
    assert len(proof.trials) == 1
    assert proof.search.reason in ("regret", "exhausted")


def test_prover_winner_of_earlier_proof_is_named(make_prover):
    template = toy_template("--slots", "{requests}", "--step-ms", "20")
    given = {"requests": [1, 8]}
    make_prover(template, given, starts=2).prove()
    again = make_prover(template, given, starts=2)

    proof = again.prove()

    assert proof.best is None
    assert proof.best_config["requests"] == 8
    assert "best: requests=8, by an earlier proof; not verified" in "\n".join(
        sentences(proof, again.settings)
    )
    assert proof_to_json(proof, again.settings)["best"] == dict(proof.best_config)


def test_prover_spent_seconds_end_search_after_plans_own(make_prover):
    template = toy_template("--slots", "{requests}", "--step-ms", "20")
    proof = make_prover(template, {"requests": [1, 8]}, starts=5, seconds=1e-3).prove()

    assert len(proof.trials) == 1
    assert proof.search.reason == "seconds"
