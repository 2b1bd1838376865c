"""Searching candidates, where looking at all of them shows what it should find."""

import numpy as np

from foretune.plan import Formats, Requirements, Workload, describe_model, find_system
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.serve.candidates import candidate_deployments, one_pool_candidates
from foretune.plan.serve.planner import search_candidates
from foretune.plan.serve.prediction import predict
from foretune.search.pareto import hypervolume

LOAD = Workload(2048, 256)


def test_a_search_finds_nearly_the_whole_front_in_part_of_the_candidates(monkeypatch):
    from foretune.plan.serve import planner

    monkeypatch.setattr(planner, "POPULATION_SIZE", 12)
    monkeypatch.setattr(planner, "GENERATIONS", 6)
    model, system = describe_model("Qwen/Qwen3-235B-A22B"), find_system("b200_sxm")
    formats = [Formats(weights, kv="fp8") for weights in ("fp8", "nvfp4")]
    candidates = one_pool_candidates(
        list(candidate_deployments(model, system, 8, LOAD, "sglang", formats))
    )
    clocks = StepTimerFactory(None)
    some, table = search_candidates(
        candidates, Requirements(), lambda these: predict(these, clocks)
    )
    whole = predict(candidates, clocks)
    assert len(some) == len(table) < 0.5 * len(candidates)

    def volume(found):
        values = np.column_stack([-np.log(found["tokens_per_s_per_gpu"]), np.log(found["tpot_ms"])])
        return hypervolume(values, [0.0, np.log(1e4)])

    assert volume(table) >= 0.97 * volume(whole)
