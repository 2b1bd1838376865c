"""What a proof starts and promises: `plan/prove/request.py`."""

from math import isnan

import pytest

from foretune.plan import Formats, PlanRequest, Workload, plan
from foretune.plan.prove.load import Load
from foretune.plan.prove.prediction import ServerPredictor
from foretune.plan.prove.request import proven_deployments, simulated_promises
from foretune.plan.prove.setting import Setting

WORKLOAD = Workload(isl=32, osl=8)


@pytest.fixture
def planned(small, deployment, timers):
    request = PlanRequest(
        model=small,
        systems=(deployment.system,),
        gpus=1,
        workload=WORKLOAD,
        formats=(Formats("fp32", kv="fp32"), Formats("bf16")),
    )
    return plan(request, timers)


def test_proven_deployments_leave_out_what_cannot_start(planned):
    best = planned.deployment(planned.best)
    both = proven_deployments(planned, best)
    assert both[0].formats == best.formats
    assert len({deployment.formats for deployment in both}) == 2

    none_else = proven_deployments(planned, best, can_start=lambda deployment: False)
    assert [deployment.formats for deployment in none_else] == [best.formats]


def test_simulated_promises_are_of_the_loads_own_requests(deployment, timers):
    planned = Setting(deployment, requests=8, cache_gib=1.0)
    loads = [Load(WORKLOAD, concurrency=n) for n in (1, 8)]
    predictor = ServerPredictor(timers)
    alone, full = simulated_promises(predictor, planned, loads).values()
    assert alone.tokens_per_s < full.tokens_per_s
    # One request alone: its prompt, then a step per further token.
    tokens_per_s = 1e3 * 8 / (alone.ttft_ms + 7 * alone.tpot_ms)
    assert alone.tokens_per_s == pytest.approx(tokens_per_s, rel=0.01)
    # No trial has said how far off it may be.
    assert isnan(alone.spread)
