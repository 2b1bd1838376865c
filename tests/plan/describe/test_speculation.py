"""Speculative decoding: what is gained, what drafts, and what it takes."""

import random
from dataclasses import replace

import pytest

from foretune.errors import UsageError
from foretune.plan import (
    Formats,
    Layout,
    PlanRequest,
    Speculation,
    Workload,
    describe_model,
    find_system,
    plan,
)
from foretune.plan.cost.memory import request_bytes, weight_bytes
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.describe.description import Indexer, LinearAttention
from foretune.plan.serve.simulation import simulate


@pytest.mark.parametrize(("drafted", "acceptance"), [(1, 0.8), (3, 0.7), (5, 0.0)])
def test_tokens_per_step_are_those_of_a_simulation(drafted, acceptance):
    draw, tokens, steps = random.Random(0), 0, 20_000
    for _ in range(steps):
        kept = 0
        while kept < drafted and draw.random() < acceptance:
            kept += 1
        tokens += kept + 1
    assert Speculation(drafted, acceptance).accepted_tokens == pytest.approx(
        tokens / steps, rel=0.01
    )


def test_the_acceptance_is_no_share_of_the_drafted_tokens():
    """Of three tokens, 1.53 are accepted: 51 %."""
    said = str(Speculation(3, 0.7))
    assert "each accepted with probability 0.7 if those before are: 2.53 tokens per step" in said


@pytest.mark.parametrize(("drafted", "acceptance"), [(0, 0.5), (2, 1.0), (2, -0.1)])
def test_numbers_that_mean_nothing(drafted, acceptance):
    with pytest.raises(UsageError):
        Speculation(drafted, acceptance)


def test_a_model_without_layers_for_drafts(small):
    with pytest.raises(UsageError, match="--speculative"):
        Speculation(2, 0.5).drafter(small)


def test_the_models_own_layers_are_one_of_its_kind(sparse):
    index = Indexer(2, 8, 4, layers=1)
    linear = LinearAttention(1, 2, 8, 4, 8, 4)
    drafting = replace(sparse, drafting_layers=1, index=index, linear=linear, windowed_layers=0)
    own = Speculation(2, 0.5).drafter(drafting)
    assert (own.layers, own.moe_layers, own.softmax_layers, own.indexed_layers) == (1, 1, 1, 1)
    loaded = Speculation(2, 0.5).with_drafter(drafting)
    assert (loaded.layers, loaded.moe_layers) == (3, 2)
    apart = replace(sparse, layers=3, without_attention=1, without_mlp=1, drafting_layers=1)
    loaded = Speculation(2, 0.5).with_drafter(apart)
    assert (loaded.layers, loaded.moe_layers, loaded.softmax_layers) == (5, 2, 3)


def test_a_draft_model_lies_beside_the_other(small):
    draft = replace(small, name="draft", layers=1, weight_format="fp8", moe_format="fp8")
    loaded = Speculation(2, 0.5, draft).with_drafter(small)
    split, formats = Layout(2), Formats(kv="fp8")
    both = weight_bytes(small, split, formats) + weight_bytes(draft, split, Formats("fp8"))
    assert weight_bytes(loaded, split, formats) == both
    each = request_bytes(small, split, formats, 10)
    assert request_bytes(loaded, split, formats, 10) == pytest.approx(1.5 * each)


def test_drafts_help_one_request_and_cost_many(small):
    clocks, h100 = StepTimerFactory(None), find_system("h100_sxm")
    model = describe_model("meta-llama/Meta-Llama-3.1-8B")
    draft = describe_model("meta-llama/Llama-3.2-1B")

    def rates(speculation):
        request = PlanRequest(
            model=model,
            systems=(h100,),
            gpus=1,
            workload=Workload(512, 256),
            formats=(Formats(),),
            speculation=speculation,
        )
        found = plan(request, clocks).candidates
        per_s = found.sort_values("batch")["tokens_per_s_per_gpu"]
        return per_s.iloc[0], per_s.iloc[-1]

    alone, many = rates(None)
    good, bad = rates(Speculation(3, 0.8, draft)), rates(Speculation(3, 0.1, draft))
    assert alone * 1.5 < good[0] < alone * Speculation(3, 0.8).accepted_tokens
    assert bad[0] < alone
    assert bad[1] < many


def test_closed_forms_agree_with_steps():
    clocks = StepTimerFactory(None)
    model = describe_model("deepseek-ai/DeepSeek-V3")
    request = PlanRequest(
        model=model,
        systems=(find_system("b200_sxm"),),
        gpus=8,
        workload=Workload(1024, 512),
        formats=(Formats("nvfp4", kv="fp8"),),
        speculation=Speculation(2, 0.7),
    )
    found = plan(request, clocks)
    few = found.candidates[found.candidates["batch"] == 64].iloc[0]
    seen = simulate(found.deployment(few), int(few["replicas"]), clocks)
    assert seen.tpot_ms[50] == pytest.approx(few["tpot_ms"], rel=0.25)
    assert not (found.candidates["pp"] > 1).any()
