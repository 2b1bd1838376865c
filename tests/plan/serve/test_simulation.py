"""Simulated requests of a deployment: `plan/serve/simulation.py`."""

import json
from dataclasses import replace

import numpy as np
import pytest

from foretune.cli import main
from foretune.errors import UsageError
from foretune.plan import Formats, Workload, describe_model, find_system
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.describe.layout import Layout
from foretune.plan.engine.requests import Requests
from foretune.plan.serve.candidates import predict
from foretune.plan.serve.deployments.deployment import Deployment, Pools
from foretune.plan.serve.launching import launch_commands
from foretune.plan.serve.requirements import Requirements
from foretune.plan.serve.simulation import SimulationResult, choose_step_tokens, simulate

MODEL = describe_model("meta-llama/Llama-3.1-8B")
SYSTEM = find_system("h100_sxm")
FORMATS = Formats("fp8", kv="fp8")
LOAD = Workload(512, 64)


def deployment(concurrency=16, layout=Layout(), **more):  # noqa: B008  # immutable
    return Deployment(MODEL, SYSTEM, "vllm", layout, FORMATS, LOAD, concurrency, **more)


@pytest.fixture(scope="module")
def clocks():
    return StepTimerFactory(None)


def test_simulate_percentiles_ascend_and_replicas_multiply_throughput(clocks):
    one, two = (simulate(deployment(), n, clocks) for n in (1, 2))
    for ms in (one.ttft_ms, one.tpot_ms):
        assert ms[50] <= ms[90] <= ms[99]
    assert two.tokens_per_s == pytest.approx(2 * one.tokens_per_s)


def test_simulate_throughput_follows_littles_law(clocks):
    found = simulate(deployment(64), 1, clocks)
    request_ms = found.ttft_ms[50] + (LOAD.osl - 1) * found.tpot_ms[50]
    assert found.tokens_per_s == pytest.approx(64 * LOAD.osl * 1e3 / request_ms, rel=0.03)


def test_simulate_small_model_waits_for_cpu(clocks):
    """The formula counts CPU time that the GPU does not hide, as the simulation does."""
    small = replace(deployment(768), model=describe_model("meta-llama/Llama-3.2-1B"))
    predicted = predict([small], clocks).iloc[0].to_dict()
    simulated = simulate(small, 1, clocks)
    assert simulated.tpot_ms[50] == pytest.approx(predicted["tpot_ms"], rel=0.2)
    near, far = (predicted | {"ttft_ms": n * simulated.ttft_ms[50]} for n in (1.1, 2.0))
    assert "in waves" in simulated.differences(far, None)[0]
    assert simulated.differences(near, None) == simulated.differences(far, 1.0) == []


def test_simulate_higher_rate_waits_longer(clocks):
    slow, fast = (simulate(deployment(64), 1, clocks, rate=rate) for rate in (1.0, 40.0))
    assert fast.ttft_ms[90] > slow.ttft_ms[90]
    assert fast.tpot_ms[90] > slow.tpot_ms[90]


def test_simulate_corrected_time_per_token_scales_steps(clocks):
    free = simulate(deployment(), 1, clocks)
    bound = simulate(deployment(), 1, clocks, tpot_ms=2 * free.tpot_ms[50])
    assert bound.tpot_ms[50] == pytest.approx(2 * free.tpot_ms[50], rel=0.1)


def test_simulate_one_token_answers_have_no_time_per_token(clocks):
    single = replace(deployment(), workload=Workload(512, 1))
    free, paced = (simulate(single, 1, clocks, tpot_ms=ms) for ms in (None, 9.0))
    assert free == paced
    chosen = choose_step_tokens(single, Requirements(goal="latency"), lambda one: free)
    assert chosen == (single, free)


def test_simulate_more_stages_have_more_throughput(clocks):
    rates = [
        simulate(deployment(64 * pp, Layout(pp=pp)), 1, clocks).tokens_per_s for pp in (1, 2, 4)
    ]
    assert rates[0] < rates[1] < rates[2]


def test_simulate_separate_pools_need_rate_and_prefill_elsewhere(clocks):
    pooled = deployment(32, pools=Pools(Layout(), 1, 1))
    with pytest.raises(UsageError, match="add --rate or --trace"):
        simulate(pooled, 1, clocks)
    together = simulate(deployment(32), 1, clocks, rate=20.0)
    apart = simulate(pooled, 1, clocks, rate=20.0)
    assert apart.tpot_ms[99] < together.tpot_ms[99]


def test_simulate_trace_is_shared_by_replicas(clocks):
    trace = Requests.poisson(5.0, 60, 300, 20)
    found = simulate(deployment(), 3, clocks, trace=trace)
    assert found.requests == 20
    assert np.isfinite(found.tokens_per_s)


def test_plan_command_trace(tmp_path, capsys, monkeypatch):
    from foretune.plan.cost import tables as operator_tables

    monkeypatch.setattr(operator_tables, "default_folders", list)
    path = tmp_path / "trace.csv"
    lines = [f"{i * 0.1},{200 + 10 * (i % 7)},{20 + i % 5}" for i in range(40)]
    path.write_text("\n".join(["at_s,isl,osl", *lines]))
    words = [
        "plan",
        "serve",
        MODEL.name,
        "--system",
        "h100_sxm",
        "--gpus",
        "1",
        "--json",
        "--trace",
        str(path),
        "--formats",
        "fp8/fp8",
    ]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["question"]["isl"] == 229
    assert answer["replayed"]["requests"] == 40
    assert "--max-model-len 284 " in answer["commands"]["vllm"]  # of the longest
    assert main(["plan", "serve", MODEL.name, "--gpus", "1"]) == 2
    assert "give --system, --isl, --osl too" in capsys.readouterr().err


def test_simulate_first_wave_is_dropped(clocks):
    few, many = (simulate(deployment(n), 1, clocks) for n in (400, 1500))
    assert many.ttft_ms[99] < 4 * many.ttft_ms[50]
    assert many.requests >= 1000
    assert few.ttft_ms[99] < 4 * few.ttft_ms[50]


@pytest.mark.parametrize(("isl", "osl", "in_flight"), [(4000, 1, 64), (60_000, 16, 1), (256, 8, 4)])
def test_simulate_agrees_with_formulas_for_short_answers(clocks, isl, osl, in_flight):
    """Within a factor of three, where they were off by twenty."""
    asked = replace(deployment(in_flight), workload=Workload(isl, osl))
    formula = predict([asked], clocks)
    seen = simulate(asked, 1, clocks)
    per_s = formula["requests_per_s"].iloc[0] * osl
    assert 1 / 3 < per_s / seen.tokens_per_s < 3
    if in_flight == 1:
        assert formula["tpot_ms"].iloc[0] < 2 * seen.tpot_ms[50]


@pytest.mark.parametrize(
    ("goal", "limit", "chosen"),
    [("throughput", np.inf, 16384), ("latency", np.inf, 1024), ("throughput", 15.0, 4096)],
)
def test_choose_step_tokens_takes_best_for_limits_and_goal(goal, limit, chosen):
    """More tokens per step give more per second here, and longer steps."""

    def run(one):
        size = one.step_tokens / 1024
        times = dict.fromkeys((50, 90, 99), 10.0 + size)
        return SimulationResult(100, dict.fromkeys(times, 1.0), times, 100.0 + size)

    best, found = choose_step_tokens(deployment(), Requirements(tpot_ms=limit, goal=goal), run)
    assert best.step_tokens == chosen
    assert found == run(best)
    assert f"--max-num-batched-tokens {chosen}" in launch_commands(best)["vllm"]


def test_choose_step_tokens_skips_steps_that_do_not_fit():
    full = deployment()
    full = replace(full, concurrency=full.max_requests)

    def run(one):
        assert one.step_tokens <= 8192, "activations of more tokens leave no room for the requests"
        return SimulationResult(1, dict.fromkeys((50, 90, 99), 1.0), {50: 1, 90: 1, 99: 1}, 1.0)

    assert choose_step_tokens(full, Requirements(), run)[0] == full
