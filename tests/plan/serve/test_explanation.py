"""Sentences and notes of a plan: `plan/serve/explanation.py`."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from foretune.plan import (
    Formats,
    MeasuredLatencies,
    PlanRequest,
    Requirements,
    Workload,
    describe_model,
    find_system,
    plan,
)
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.describe.catalog import resolve_system
from foretune.plan.describe.description import LinearAttention
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.correction import LatencyPredictor
from foretune.plan.serve.deployments.probability import MIN_PROBABILITY
from foretune.plan.serve.explanation import format_number, notes, sentences

MODEL = "meta-llama/Llama-3.1-8B"
LOAD = Workload(1024, 128)


TIMERS = StepTimerFactory(None)
FORMATS = (Formats("bf16"), Formats("fp8", kv="fp8"))


def make_request(systems=("h100_sxm",), model=MODEL, **options):
    """The question of a plan for two GPUs, in two formats."""
    if isinstance(model, str):
        model = describe_model(model)
    defaults = {"gpus": 2, "workload": LOAD, "formats": FORMATS}
    systems = tuple(find_system(name) for name in systems)
    return PlanRequest(model=model, systems=systems, **(defaults | options))


def planned(systems=("h100_sxm",), correction=None, **options):
    return plan(make_request(systems, **options), TIMERS, MeasuredLatencies(correction))


def as_measured(made):
    """The plan as if it came from measured tables, with intervals."""
    return replace(made, has_tables=True, corrected=True)


@pytest.fixture(scope="module")
def correction():
    """What was learned from deployments half as fast again as the formulas say."""
    deployments = planned().deployments[::3]
    rows = analytic_times(deployments, StepTimerFactory(None))
    times = planned().candidates.iloc[::3].reset_index(drop=True)
    noise = np.exp(np.random.default_rng(0).normal(0, 0.05, (len(rows), 2)))
    measured = pd.DataFrame(
        {name: 1.5 * times[name] * noise[:, i] for i, name in enumerate(("tpot_ms", "ttft_ms"))}
    )
    return LatencyPredictor().fit(rows, measured, np.arange(len(rows)) // 4)


def test_sentences_best_comes_first_with_figures():
    made = planned(requirements=Requirements(tpot_ms=30.0))
    best = made.best
    lines = sentences(made)
    assert lines[0].startswith(f"best: {best['formats']}, ")
    assert f"{best['tpot_ms']:.4g} ms per further token" in lines[1]
    assert f"{format_number(best['tokens_per_s_per_gpu'])} tokens/s per GPU" in lines[2]
    assert any(line.startswith("limited by ") for line in lines)
    assert any(f"at {made.goodput:.3g} randomly arriving requests/s" in line for line in lines)
    assert all(len(line) < 160 for line in lines)


def test_sentences_small_throughput_and_slow_cpu():
    slow = planned(
        ("gb200",),
        model="meta-llama/Llama-3.2-1B",
        gpus=1,
        workload=Workload(128, 64),
        formats=(Formats(),),
    )
    assert planned().best["limited_by"] != slow.best["limited_by"] == "engine"
    slow.best["tokens_per_s_per_gpu"] = 0.00194
    lines = sentences(slow)
    assert lines[2].startswith("0.00194 tokens/s per GPU")
    assert lines[3].startswith("limited by the engine's CPU time")


def test_sentences_several_systems_are_named():
    assert "h100_sxm" not in sentences(planned())[0]
    made = planned(("h100_sxm", "a100_sxm"))
    assert f"2 × {made.best['system']}" in sentences(made)[0]


def test_sentences_separate_pools_are_compared_with_one_pool():
    made = planned(gpus=4, pools=True, requirements=Requirements(tpot_ms=15.0))
    assert made.best["prefill"]
    line = next(line for line in sentences(made) if line.startswith("separate pools"))
    gain = made.best["tokens_per_s_per_gpu"] / made.best_one_pool["tokens_per_s_per_gpu"] - 1
    assert f"{100 * gain:.0f} % better" in line
    assert made.best_one_pool["prefill"] == ""


def test_sentences_separate_pools_may_be_worse():
    """Requantizing one pool may gain a little, which is not enough to do it."""
    made = planned(gpus=4, pools=True, requirements=Requirements(tpot_ms=15.0))
    vars(made)["best_one_pool"] = made.best_one_pool.copy()
    made.best_one_pool["tokens_per_s_per_gpu"] = 1.03 * made.best["tokens_per_s_per_gpu"]
    assert "separate pools are 3 % worse than one pool" in "; ".join(sentences(made))


def test_sentences_correction_adds_intervals_and_probability(correction):
    made = planned(correction=correction, requirements=Requirements(tpot_ms=60.0))
    best = made.best
    assert best["tpot_ms_low"] < best["tpot_ms"] < best["tpot_ms_high"]
    assert f"({best['tpot_ms_low']:.4g} … {best['tpot_ms_high']:.4g})" in sentences(made)[1]
    assert 0.0 <= made.probability_best <= 1.0
    assert any(f"{100 * made.probability_best:.0f} % likely" in line for line in sentences(made))


def test_plan_correction_keeps_only_likely_candidates(correction):
    limit = float(planned(correction=correction).best["tpot_ms"])
    made = planned(correction=correction, requirements=Requirements(tpot_ms=limit))
    kept = made.candidates["keeps"]
    assert (made.candidates.loc[kept, "sure"] >= MIN_PROBABILITY).all()
    assert (made.candidates.loc[kept, "tpot_ms"] <= limit).all()


def test_notes_name_missing_measurements():
    made = as_measured(planned())
    assert not any("exceed the model's context" in line for line in notes(made))
    long = planned(workload=Workload(200_000, 100), formats=(Formats("fp8", kv="fp8"),))
    assert any(
        "200,100 tokens exceed the model's context of 131,072" in line for line in notes(long)
    )
    lengths = [replace(d, max_request_tokens=150_000) for d in made.deployments]
    longest = replace(made, deployments=lengths)
    assert any("150,000 tokens exceed" in line for line in notes(longest))
    assert any("pp > 1" in line for line in notes(made))
    assert any("rooflines" in line for line in notes(replace(made, has_tables=False)))
    assert any("no intervals" in line for line in notes(replace(made, corrected=False)))
    assert "100 % of a step was not measured on h100_sxm" in "; ".join(notes(made))
    refused = planned(
        ("l4", "h100_sxm"), model="meta-llama/Llama-3.1-70B", formats=(Formats("fp8"),)
    )
    assert any("does not fit on 2 × l4" in line for line in notes(refused))


def test_notes_name_exceeded_fast_links(small):
    wide = replace(small, layers=16)
    made = planned(("gb200", "l4"), model=wide, gpus=16, formats=(Formats(),))
    said = [line for line in notes(made) if line.startswith("layouts beyond")]
    assert said == [
        (
            "layouts beyond 8 GPUs of l4 exchange over the network: their times are of a model, "
            "not measured"
        )
    ]


def test_notes_name_emulated_formats():
    made = planned(("a100_sxm",), gpus=1, formats=(Formats("fp8"), Formats("nvfp4")))
    line = next(line for line in notes(made) if line.startswith("emulated"))
    assert line.endswith(": fp8, bf16 cache; nvfp4, bf16 cache")


def test_sentences_candidate_with_two_names_has_one_line():
    made = planned()
    vars(made)["runner_up"] = made.next_faster
    said = [line for line in sentences(made) if line.startswith(("next", "faster"))]
    assert [line.partition(": ")[0] for line in said] == ["next, faster per token"]


def test_notes_name_unvalidated_mixed_layers(small):
    state = LinearAttention(1, 2, 8, 4, 8, 4, "mamba2")
    odd = replace(small, linear=state)
    for model, said in ((small, False), (odd, True)):
        made = planned(model=model, gpus=1, formats=(Formats(),))
        assert any("mixed layers" in line for line in notes(made)) == said


def test_notes_format_from_a_name_is_called_a_guess():
    guessed = planned(model="acme/Llama-3.1-8B-quantized.w4a16", formats=(Formats("int4_wo"),))
    known = planned(formats=(Formats("int4_wo"),))

    assert any("guessed from the name acme/Llama-3.1-8B-quantized" in n for n in notes(guessed))
    assert not any("guessed" in note for note in notes(known))


def test_notes_system_that_was_never_measured_says_so():
    request = make_request(gpus=1, formats=(Formats("bf16"),))
    system = resolve_system("RTX 4090")

    planned_for_board = plan(replace(request, systems=(system,)), TIMERS, MeasuredLatencies(None))

    assert system.assumptions in notes(planned_for_board)
    assert not any("never measured" in note for note in notes(planned()))
