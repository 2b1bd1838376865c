"""Times of pipeline stages: `plan/engine/stage_times.py`."""

import pytest

from foretune.plan import describe_model, find_system
from foretune.plan.cost.operator import Part
from foretune.plan.cost.steps import Step, StepTimerFactory
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout
from foretune.plan.engine.stage_times import StageTimes, StepLoad

MODELS = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3")
FORMATS = Formats("fp8", kv="fp8")


@pytest.fixture(scope="module")
def clock():
    return StepTimerFactory(None)(find_system("h100_sxm"), "vllm")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("batch", "new", "context"), [(64, 1, 1023), (48, 1, 1500), (4, 1024, 0)])
def test_stage_times_add_up_to_step(clock, name, batch, new, context):
    model = describe_model(name)
    layout = Layout(8, moe_ep=8)
    layout = layout if model.is_moe else Layout(8)
    times = StageTimes(model, layout, FORMATS, clock, 8192, 4096, 256)
    phase = "decode" if new == 1 else "prefill"
    step = Step(model, layout, FORMATS, Part(batch, new, context, phase))
    if phase == "decode":
        load = StepLoad(batch, batch * context)
    else:
        load = StepLoad(0, 0, [(new, context)] * batch, batch)
    whole = clock.times([step])["total"].iloc[0]
    assert sum(w.ms for w in times(load, 0)) == pytest.approx(whole, rel=0.06)


def test_stage_times_follow_layers_and_last_has_head(clock):
    model = describe_model(MODELS[0])
    times = StageTimes(model, Layout(pp=4), FORMATS, clock, 8192, 4096, 256)
    first, *_, last = times(StepLoad(64, 64 * 1000))
    assert [w.layers for w in times(StepLoad(1, 10))] == [8, 8, 8, 8]
    assert last.ms > first.ms
    whole = StageTimes(model, Layout(), FORMATS, clock, 8192, 4096, 256)
    assert first.ms == pytest.approx(whole(StepLoad(64, 64 * 1000))[0].ms / 4, rel=0.2)


def test_stage_times_padding_costs_no_attention(clock):
    model = describe_model(MODELS[0])
    times = StageTimes(model, Layout(), FORMATS, clock, 8192, 4096, 512)
    bare = times(StepLoad(200, 2e5))[0].ms
    padded = times(StepLoad(200, 2e5), 56)[0].ms
    assert bare < padded < times(StepLoad(256, 2.56e5))[0].ms
