"""Enumerated deployments of one and of two pools: `plan/serve/candidates.py`."""

from dataclasses import replace

import numpy as np
import pytest

from foretune.device import Device
from foretune.plan import Formats, PlanRequest, System, Workload, describe_model, find_system
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
