"""Step times learned from a log, and the models for other simulators."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import joblib
import numpy as np
import pandas as pd
import pytest

from foretune.errors import UsageError
from foretune.models.predictor import Predictor
from foretune.plan.steps import aisimulate, sglang_simulator
from foretune.plan.steps.learned_steps import ANSWERS_ALONE, BOTH, PROMPTS_ALONE, learn_steps
from foretune.plan.steps.minutes import (
    MIN_BLOCKS,
    MINUTE_MS,
    HeldOutSteps,
    held_out_sets,
    minutes_of,
)
from foretune.plan.steps.work import columns_of_work, drawn_steps, missing_kinds, work_of

STEPS = 300


def law_ms(work):
    """A step of 5 ms, and times for tokens, cached tokens, and pairs of tokens in prompts."""
    computed = work["prompt_tokens"] + work["answers"]
    cached = work["prompt_context"] + work["answer_context"]
    return 5.0 + 0.03 * computed + 1e-4 * cached


def logged_steps(kinds):
    """Return steps of a law, with noise of 1 %."""
    rng = np.random.default_rng(0)
    kind = rng.choice(len(kinds), STEPS)
    has_prompts = np.array([name != ANSWERS_ALONE for name in kinds])[kind]
    has_answers = np.array([name != PROMPTS_ALONE for name in kinds])[kind]
    prompts = np.where(has_prompts, rng.integers(1, 4, STEPS), 0)
    answers = np.where(has_answers, rng.integers(1, 33, STEPS), 0)
    work = pd.DataFrame(
        {
            "prompts": prompts,
            "prompt_tokens": prompts * rng.integers(16, 512, STEPS),
            "prompt_context": prompts * rng.integers(0, 2, STEPS) * 128,
            "answers": answers,
            "answer_context": answers * rng.integers(64, 2000, STEPS),
        }
    ).astype(float)
    runs = work.add_prefix("problem.")
    noise = np.exp(rng.normal(0.0, 0.01, STEPS))
    times = {"time_ms": law_ms(work) * noise, "status": "ok"}
    return runs.assign(kernel="engine_step", device="a GPU", **times)


@pytest.fixture(scope="module")
def learned():
    return learn_steps(logged_steps([ANSWERS_ALONE, PROMPTS_ALONE]))


def test_learn_steps_predicts_held_out_steps(learned):
    """The noise is 1 %, so half of the steps are within 0.7 % of the law."""
    assert set(learned.errors) == {ANSWERS_ALONE, PROMPTS_ALONE}
    for errors in learned.errors.values():
        assert errors.median < 0.03
        assert errors.coverage > 0.8
    assert sum(errors.steps for errors in learned.errors.values()) == STEPS


def drifting_steps(ms_of_minute):
    """Return steps of a law on a machine that is as slow in each part of the log as is said."""
    runs = logged_steps([ANSWERS_ALONE])
    factor = np.repeat(ms_of_minute, STEPS // len(ms_of_minute))
    return runs.assign(time_ms=runs["time_ms"] * factor)


def test_intervals_hold_in_minutes_that_were_not_seen():
    """The speed drifts by 10 %, and steps within a minute differ by 1 %."""
    drift = np.exp(np.random.default_rng(1).normal(0.0, 0.1, 30))
    learned = learn_steps(drifting_steps(drift))
    errors = learned.errors[ANSWERS_ALONE]
    assert 0.8 <= errors.coverage <= 0.98

    # A minute of usual speed is in the saved predictor's interval, one of twice the time is not.
    predicted = learned.predictor.predict(learned.runs)
    high = np.median(predicted["time_ms_high"] / predicted["time_ms"])
    assert 1.1 < high < 1.6


def test_width_of_intervals_is_saved(learned, tmp_path):
    learned.predictor.save(tmp_path / "steps")
    loaded = Predictor.load(tmp_path / "steps")
    expected = learned.predictor.predict(learned.runs)["time_ms_high"]
    np.testing.assert_allclose(loaded.predict(learned.runs)["time_ms_high"], expected, rtol=1e-5)


def test_minutes_are_consecutive_and_each_step_is_held_out_once():
    runs = logged_steps([BOTH])
    minutes = minutes_of(runs)
    assert minutes[0] == 0
    assert set(np.diff(minutes)) == {0, 1}
    assert len(set(minutes)) == MIN_BLOCKS
    assert (np.sum(held_out_sets(runs), axis=0) == 1).all()


def test_minutes_of_a_long_log_are_minutes():
    runs = logged_steps([BOTH])
    runs = runs.assign(time_ms=runs["time_ms"] * 20 * MINUTE_MS / runs["time_ms"].sum())
    assert len(set(minutes_of(runs))) == 20


def test_one_long_pause_leaves_steps_in_all_sets():
    runs = logged_steps([BOTH])
    runs.loc[40, "time_ms"] = 1e7
    assert min(held.sum() for held in held_out_sets(runs)) > STEPS // 5


def test_width_factor_of_a_minute_comes_from_the_others():
    """Nine minutes are exact to half of their width, the tenth is off by five of it."""
    block = np.repeat(np.arange(10), 50)
    error = np.where(block == 9, 5.0, 0.5)
    held_out = HeldOutSteps(
        block=block, predicted_ms=np.ones(500), half_width=np.ones(500), error=error
    )
    assert held_out.is_inside()[block < 9].all()
    assert not held_out.is_inside()[block == 9].any()


def test_learn_steps_linear_law_is_exact_for_a_linear_engine(learned):
    assert learned.errors[ANSWERS_ALONE].law_median < 0.012


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": ["a", "b"] * (STEPS // 2)}, "several devices, a, b"),
        ({"kernel": ["x", "y"] * (STEPS // 2)}, "several kernels, x, y"),
    ],
)
def test_learn_steps_refuses_a_mixture(change, reason):
    with pytest.raises(UsageError, match=reason):
        learn_steps(logged_steps([BOTH]).assign(**change))


def test_learn_steps_refuses_few_steps():
    with pytest.raises(UsageError, match="100 steps are too few"):
        learn_steps(logged_steps([BOTH]).head(100))


def test_work_of_vllm_log_is_inverted():
    """The cache has 900 tokens after a step of 2 prompts with 100 tokens and 3 answers."""
    logged = {"prompts": 2, "prompt_tokens": 100, "answers": 3, "context": 900}
    runs = pd.DataFrame([{f"problem.{name}": value for name, value in logged.items()}])
    work = work_of(runs)
    assert work.loc[0, "answer_context"] == 900 - 100 - 3
    assert work.loc[0, "prompt_context"] == 0
    pd.testing.assert_frame_equal(columns_of_work(work, runs), runs, check_dtype=False)


@pytest.mark.parametrize("kind", [ANSWERS_ALONE, PROMPTS_ALONE, BOTH])
def test_drawn_steps_are_of_their_kind_and_reach_beyond_the_log(learned, kind):
    work = drawn_steps(learned, kind)
    assert ((work["prompts"] > 0) == (kind != ANSWERS_ALONE)).all()
    assert ((work["answers"] > 0) == (kind != PROMPTS_ALONE)).all()
    assert (work["prompt_tokens"] >= work["prompts"]).all()
    if kind != PROMPTS_ALONE:
        assert 32 < work["answers"].max() <= 64


def test_missing_kinds_are_those_without_a_step(learned):
    assert missing_kinds(learned, [ANSWERS_ALONE, BOTH]) == [BOTH]


# AISimulate


def leaf_value(tree, x):
    """Return the value of a tree, as AISimulate walks it."""
    node = 0
    while tree["left"][node] >= 0:
        goes_left = x[tree["feature"][node]] <= tree["threshold"][node]
        node = tree["left"][node] if goes_left else tree["right"][node]
    return tree["value"][node]


def asked(artifact, metrics):
    """Return what AISimulate predicts for the sums of a step."""
    prompts = metrics["prompts"]
    answers = metrics["answers"]
    tokens = metrics["prompt_tokens"]
    cached = metrics["prompt_context"]
    named = {
        "num_prefill_requests": prompts,
        "sum_prefill_tokens": tokens,
        "sum_prefill_kv_tokens": cached,
        "num_decode_requests": answers,
        "sum_decode_kv_tokens": metrics["answer_context"],
        "mean_prefill_chunk": tokens / prompts if prompts else 0.0,
        "mean_prefill_kv": cached / prompts if prompts else 0.0,
        "mean_decode_kv": metrics["answer_context"] / answers if answers else 0.0,
        "prefill_attention_pairs": (
            cached * tokens / prompts + tokens**2 / (2 * prompts) + tokens / 2 if prompts else 0.0
        ),
    }
    kind = "pure_prefill" if not answers else "contains_locally_mixed"
    store = artifact["stores"]["pure_decode" if not prompts else kind]
    x = [named[name] for name in artifact["features"]]
    return math.exp(store["baseline"] + sum(leaf_value(tree, x) for tree in store["trees"]))


@pytest.fixture(scope="module")
def artifact(learned):
    return json.loads(json.dumps(aisimulate.artifact(learned)))


def test_artifact_is_valid_for_aisimulate(artifact):
    """The checks of its loader: names, lengths of arrays, children after parents, numbers."""
    assert artifact["schema"] == "aic_fpm_learned_forward_perf"
    assert artifact["schema_version"] == 1
    assert artifact["worker_type"] == "aggregated"
    assert set(artifact["stores"]) == {"pure_decode", "pure_prefill", "contains_locally_mixed"}
    for store in artifact["stores"].values():
        assert math.isfinite(store["baseline"])
        for tree in store["trees"]:
            nodes = len(tree["value"])
            assert all(len(tree[name]) == nodes for name in tree)
            for node, (left, right) in enumerate(zip(tree["left"], tree["right"], strict=True)):
                is_leaf = left < 0
                assert is_leaf == (right < 0)
                assert is_leaf or node < min(left, right) <= max(left, right) < nodes
                assert is_leaf or 0 <= tree["feature"][node] < len(artifact["features"])
                assert math.isfinite(tree["threshold"][node])
                assert math.isfinite(tree["value"][node])


def test_artifact_answers_like_the_predictor(learned, artifact):
    work = work_of(learned.runs).head(60)
    expected = learned.predict_ms(columns_of_work(work, learned.runs))
    answered = [asked(artifact, step) for step in work.to_dict("records")]
    assert np.median(np.abs(np.array(answered) / expected - 1.0)) < 0.02


def test_artifact_of_a_worker_without_prompts_is_for_decode(learned):
    of_answers = learned.runs[learned.runs["problem.prompts"] == 0]
    artifact = aisimulate.artifact(replace(learned, runs=of_answers))
    assert artifact["worker_type"] == "decode"
    assert set(artifact["stores"]) == {"pure_decode"}


def test_artifact_is_read_by_aisimulate(learned, artifact):
    sdk = pytest.importorskip("aisimulate_core.sdk")
    model = sdk.RustForwardPassPerfModel.from_learned(artifact)
    for step in work_of(learned.runs).head(20).to_dict("records"):
        sums = {
            "num_prefill_requests": int(step["prompts"]),
            "sum_prefill_tokens": int(step["prompt_tokens"]),
            "sum_prefill_kv_tokens": int(step["prompt_context"]),
            "num_decode_requests": int(step["answers"]),
            "sum_decode_kv_tokens": int(step["answer_context"]),
        }
        metrics = {"version": 1, "scheduled_requests": sums}
        answered = model.estimate_forward_pass_time_ms([metrics])
        assert answered == pytest.approx(asked(artifact, step), rel=1e-6)


# SGLang's simulator


def simulator_features(requests):
    """Return the features of a batch, (new tokens, cached tokens) of each request."""
    new = [request[0] for request in requests]
    cached = [request[1] for request in requests]
    pairs = sum(n * (c + n / 2) for n, c in requests)
    return [
        len(new),
        sum(new),
        max(new),
        min(new),
        sum(cached),
        max(cached),
        min(cached),
        sum(n * c for n, c in requests),
        sum(n * n for n in new),
        sum(c * c for c in cached),
        pairs,
        sum(new) * max(cached),
        math.log1p(sum(cached)),
        math.log1p(pairs),
        len(new) * sum(new),
        max(cached) - min(cached),
        int(all(n == 1 for n in new)),
        int(any(n > 1 for n in new)),
    ]


@pytest.mark.parametrize(
    "requests",
    [[(1, 900)] * 8, [(1, 100), (1, 1700)] * 4, [(300, 0), (200, 128)], [(400, 0)]],
    ids=["answers", "uneven answers", "two prompts", "a prompt"],
)
def test_bundle_predicts_seconds_of_batches(learned, bundle, requests):
    assert bundle["features"] == list(sglang_simulator.FEATURES)
    (seconds,) = bundle["model"].predict([simulator_features(requests)])
    is_prompt = requests[0][0] > 1
    work = {
        "prompts": len(requests) if is_prompt else 0,
        "prompt_tokens": sum(n for n, _ in requests) if is_prompt else 0,
        "prompt_context": sum(c for _, c in requests) if is_prompt else 0,
        "answers": 0 if is_prompt else len(requests),
        "answer_context": 0 if is_prompt else sum(c for _, c in requests),
    }
    assert 1e3 * seconds == pytest.approx(law_ms(work), rel=0.1)


@pytest.fixture(scope="module")
def bundle(learned):
    return sglang_simulator.bundle(learned)


def test_bundle_is_loaded_without_foretune(bundle, tmp_path):
    path = tmp_path / "model.pkl"
    joblib.dump(bundle, path)
    code = (
        "import sys, joblib\n"
        f"bundle = joblib.load({str(path)!r})\n"
        "assert 'foretune' not in sys.modules\n"
        "print(bundle['model'].predict([[8] + [0] * 17])[0] > 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True"


def test_bundle_of_several_ranks_is_refused(learned):
    runs = learned.runs.assign(**{"problem.ranks": 2.0})
    with pytest.raises(UsageError, match="several: log one rank"):
        sglang_simulator.bundle(replace(learned, runs=runs))
