"""Enumerated deployments of one and of two pools: `plan/serve/candidates.py`."""

from dataclasses import replace

import numpy as np
import pytest

from foretune.device import Device
from foretune.plan import (
    Formats,
    Layout,
    PlanRequest,
    System,
    Workload,
    describe_model,
    find_system,
    plan,
)
from foretune.plan.cost.memory import max_requests
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.serve.candidates import (
    CONCURRENCIES,
    candidate_deployments,
    concurrencies,
    one_pool_candidates,
    supported_formats,
    two_pool_candidates,
)
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.deployment import Deployment, Pools

DENSE = "meta-llama/Llama-3.1-70B"
SPARSE = "Qwen/Qwen3-235B-A22B"
LOAD = Workload(2048, 256)


def found(model=DENSE, gpus=8, formats="fp8"):
    system = find_system("h100_sxm")
    request = PlanRequest(
        model=describe_model(model),
        systems=(system,),
        gpus=gpus,
        workload=LOAD,
        formats=(Formats(formats),),
    )
    return list(candidate_deployments(request, system))


def test_candidate_deployments_dense_model_is_split_or_replicated():
    layouts = {(c.layout.tp, c.layout.pp, c.replicas) for c in found()}
    assert (4, 1, 2) in layouts
    assert (1, 2, 4) in layouts
    assert all(c.layout.dp == 1 for c in found())


def test_candidate_deployments_ranks_of_layer_span_whole_nodes():
    layouts = [c.layout for c in found(SPARSE, 16)]
    widths = {layout.tp * layout.dp for layout in layouts}
    assert max(widths) == 16
    assert all(width <= 8 or width % 8 == 0 for width in widths)
    assert max(layout.gpus for layout in layouts) == 16


@pytest.mark.parametrize("model", [DENSE, SPARSE])
def test_concurrencies_fit_memory_and_include_maximum(model):
    for candidate in found(model):
        loads = concurrencies(candidate)
        one = candidate
        most = max_requests(one.model, one.layout, one.formats, LOAD, one.system.memory_gib)
        assert all(n <= most for n in loads)
        assert loads == sorted(set(loads))
        if loads and loads[-1] < CONCURRENCIES[-1]:  # the most it holds is looked at, too
            assert loads[-1] == most


@pytest.mark.parametrize(("gpus", "model"), [(2, DENSE), (6, DENSE), (16, DENSE), (8, SPARSE)])
def test_two_pool_candidates_have_workers_for_both_pools(gpus, model):
    candidates = two_pool_candidates(found(model, gpus), gpus, StepTimerFactory(None))
    for candidate in candidates:
        pools = candidate.pools
        assert 0 < candidate.gpus <= gpus
        assert pools.prefill_workers >= 1
        assert pools.decode_workers >= 1
        assert candidate.concurrency % pools.decode_workers == 0
    if gpus >= 8:
        assert candidates


def prices(system, usd):
    return replace(find_system(system), price_per_hour=usd)


H100 = prices("h100_sxm", 4.0)
A100 = prices("a100_sxm", 2.0)


def planned_on(*systems, gpus=16):
    """Return the plan of 16-bit weights with separate pools on these kinds of GPUs."""
    request = PlanRequest(
        model=describe_model(DENSE),
        systems=systems,
        gpus=gpus,
        workload=LOAD,
        formats=(Formats(),),
        pools=True,
    )
    return plan(request, StepTimerFactory(None))


def test_two_pool_candidates_of_two_systems_compute_prompts_on_the_first():
    made = planned_on(H100, A100)
    pools = made.candidates[made.candidates["prefill"] != ""]
    assert set(zip(pools["prefill_system"], pools["system"], strict=True)) == {
        ("h100_sxm", "h100_sxm"),
        ("a100_sxm", "a100_sxm"),
        ("h100_sxm", "a100_sxm"),
        ("a100_sxm", "h100_sxm"),
    }
    mixed = pools[(pools["prefill_system"] == "h100_sxm") & (pools["system"] == "a100_sxm")]
    for _, row in mixed.iterrows():
        deployment = made.deployment(row)
        assert deployment.prefill_system.name == "h100_sxm"
        assert deployment.gpus <= 16
        assert 2.0 < deployment.price_per_hour < 4.0


def test_two_pool_candidates_of_two_systems_take_the_steps_of_each():
    """With equal layouts, prompts take the time of one system, and answers that of the other."""
    reading = Deployment(
        describe_model(DENSE), H100, "vllm", Layout(4), Formats(), LOAD, concurrency=8
    )
    decoding = replace(reading, system=A100)
    mixture = replace(decoding, pools=Pools(Layout(4), 1, 1, prefill_system=H100))
    timers = StepTimerFactory(None)
    h100, a100, mixed = (
        analytic_times([deployment], timers).iloc[0] for deployment in (reading, decoding, mixture)
    )
    assert mixed["prompt"] == pytest.approx(h100["prompt"])
    assert mixed["prefill"] == pytest.approx(h100["prefill"])
    assert mixed["decode"] == pytest.approx(a100["decode"])
    # 80 layers of 2 heads on a rank, keys and values of 128 numbers in 2 bytes.
    cache_bytes = 80 * 2 * 2 * 128 * 2 * LOAD.isl
    gbps = min(H100.inter_node_gbps, A100.inter_node_gbps)
    assert mixed["fetch"] == pytest.approx(cache_bytes / (1e6 * gbps))
    assert h100["fetch"] == 0.0


def test_plan_mixes_at_most_four_systems():
    cards = [replace(A100, name=f"a100_{i}") for i in range(4)]
    request = PlanRequest(
        model=describe_model(DENSE), systems=(H100, *cards), gpus=16, workload=LOAD, pools=True
    )
    assert request.mixed_systems == []
    assert len(replace(request, systems=(H100, *cards[:1])).mixed_systems) == 2
    assert replace(request, systems=(H100, A100), pools=False).mixed_systems == []


def test_plan_does_not_mix_makers():
    request = PlanRequest(
        model=describe_model(DENSE),
        systems=(H100, find_system("mi300x")),
        gpus=16,
        workload=LOAD,
        pools=True,
    )
    assert request.mixed_systems == []


def test_supported_formats_published_weights_come_first_with_native_caches():
    model = describe_model("openai/gpt-oss-120b")
    own = Formats(model.weight_format, kv="bf16", moe=model.moe_format)
    found = supported_formats(model, find_system("h100_sxm"))
    assert found[:2] == [own, replace(own, kv="fp8")]
    assert replace(own, kv="fp8") not in supported_formats(model, find_system("a100_sxm"))


def test_one_pool_candidates_have_every_deployment_at_every_load():
    several = found(SPARSE)
    candidates = one_pool_candidates(several)
    assert len(candidates) == sum(len(concurrencies(s)) for s in several)
    assert np.all([c.replicas * c.gpus == 8 for c in candidates])


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("deepseek-ai/DeepSeek-R1", {"fp8_block", "int4_wo", "nvfp4"}),  # published in fp8 blocks
        ("openai/gpt-oss-120b", {"bf16"}),  # its experts have 4 bits
        ("Qwen/Qwen3-8B", {"bf16", "fp8", "fp8_block", "int4_wo", "nvfp4"}),
    ],
)
def test_supported_formats_quantized_checkpoint_only_narrower_formats(name, weights):
    found = supported_formats(describe_model(name), find_system("b200_sxm"))
    assert {formats.weights for formats in found} == weights


def test_supported_formats_a_cpu_also_computes_in_single_precision():
    cpu = System.from_device(Device("CPU", "cpu", "x86_64+avx2", {"memory_gib": 64}))
    formats = supported_formats(describe_model(DENSE), cpu)
    assert formats[0] == Formats("bf16")
    assert Formats("fp32", kv="fp32") in formats
    on_gpu = supported_formats(describe_model(DENSE), find_system("h100_sxm"))
    assert Formats("fp32", kv="fp32") not in on_gpu
