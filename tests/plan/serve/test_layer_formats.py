"""A format per layer: mixtures of formats in plans, their times, commands and answers."""

import re
from dataclasses import replace

import pytest
from commands import fails, run_json

from foretune.cli import main
from foretune.plan import Formats, Layout, describe_model, find_system
from foretune.plan.cost.decoder import mixed_operators
from foretune.plan.cost.memory import weight_bytes
from foretune.plan.cost.operator import Part
from foretune.plan.describe.layout import Workload
from foretune.plan.describe.sensitivities import ATTENTION, MLP, Sensitivities
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.engine_support import unsupported_mixture
from foretune.plan.serve.launching import launch
from foretune.plan.serve.layer_formats import formats_per_layer

MODEL = "meta-llama/Llama-3.1-8B"
PLAN = ["plan", MODEL, "--system", "b200_sxm", "--gpus", "1", "--isl", "1024", "--osl", "64"]
DECODE = [Part(8, 1, 1000, "decode")]


def loss_of(layer, name):
    """The first and the last layer lose much more, in any format."""
    return {"fp8": 0.01, "nvfp4": 0.1}[name] * (40.0 if layer in (0, 31) else 1.0)


@pytest.fixture
def losses():
    parts = {
        (layer, module): {"bf16": 0.0, **{n: loss_of(layer, n) for n in ("fp8", "nvfp4")}}
        for layer in range(32)
        for module in (ATTENTION, MLP)
    }
    return Sensitivities(parts, "losses.csv")


@pytest.fixture
def file(losses, tmp_path):
    path = tmp_path / "losses.csv"
    lines = ["layer,module,format,loss"]
    for (layer, module), by_format in losses.losses.items():
        lines += [f"{layer},{module},{n},{loss}" for n, loss in by_format.items() if n != "bf16"]
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def test_mixture_has_each_format_in_its_share_of_layers():
    model = describe_model(MODEL)
    mixed = mixed_operators(model, Layout(), Formats("fp8:25.0%nvfp4"), DECODE)
    runs = {(o.name, o.config["format"]): o.count for o in mixed if o.kernel == "gemm"}
    assert runs["qkv", "fp8"] == 24
    assert runs["qkv", "nvfp4"] == 8
    assert runs["head", "bf16"] == 1


def test_mixture_of_one_format_is_that_format():
    model = describe_model(MODEL)
    alone = mixed_operators(model, Layout(), Formats("nvfp4"), DECODE)
    mixed = mixed_operators(model, Layout(), Formats("fp8:100.0%nvfp4"), DECODE)
    assert mixed == alone


def test_assignments_lose_no_more_and_are_smaller(losses):
    model = describe_model(MODEL)
    uniform, found = formats_per_layer(model, losses, [find_system("b200_sxm")], "vllm")
    assert uniform == ["bf16", "fp8", "nvfp4"]
    (as_fp8,) = [made for made in found if made.uniform == "fp8"]
    assert as_fp8.loss <= as_fp8.uniform_loss
    # The ends are left in 16 bits, which pays for four bits elsewhere.
    assert as_fp8.assignment[0, MLP] == "bf16"
    assert "nvfp4" in as_fp8.assignment.values()
    mixed = weight_bytes(model, Layout(), Formats(as_fp8.weights, moe=as_fp8.moe))
    assert mixed < weight_bytes(model, Layout(), Formats("fp8"))


def test_only_native_formats_are_assigned(losses):
    with_fp4 = formats_per_layer(describe_model(MODEL), losses, [find_system("b200_sxm")], "vllm")
    without = formats_per_layer(describe_model(MODEL), losses, [find_system("h100_sxm")], "vllm")
    assert "nvfp4" in with_fp4[0]
    assert without[0] == ["bf16", "fp8"]


def test_layer_formats_are_planned(capsys, file):
    formats = ["--formats", "auto:fp8/fp8", "--sensitivities", file, "--for", "latency"]
    answer = run_json(capsys, *PLAN, *formats)
    mixed = answer["layer_formats"]
    assert mixed["as_good_as"] == "fp8"
    assert mixed["loss"] <= mixed["uniform_loss"]

    # Each module of each layer is named once.
    names = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(32)]
    names += [f"model.layers.{layer}.mlp.up_proj" for layer in range(32)]
    patterns = [p.removeprefix("re:") for each in mixed["targets"].values() for p in each]
    for name in names:
        assert sum(bool(re.fullmatch(pattern, name)) for pattern in patterns) == 1

    # It is faster per token than the uniform format, and SGLang documents no such checkpoint.
    uniform = run_json(capsys, *PLAN, "--formats", "fp8/fp8", "--for", "latency")
    assert answer["best"]["tpot_ms"] < uniform["best"]["tpot_ms"]
    assert "documents no checkpoint whose layers are in" in answer["commands"]["sglang"]
    assert "CHECKPOINT_IN_FP8_" in answer["commands"]["vllm"]


def test_people_see_the_layers_and_the_uniform_plan(capsys, file):
    formats = ["--formats", "auto:fp8/fp8", "--sensitivities", file, "--for", "latency"]
    assert main([*PLAN, *formats]) == 0
    out = capsys.readouterr().out
    assert "a format per layer: attention in " in out
    assert "that the sum tells the quality is assumed" in out
    assert "alone: " in out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--formats", "auto"], "add --sensitivities FILE"),
        (["--formats", "fp8", "--sensitivities", "FILE"], "add --formats auto"),
        (["--formats", "auto:int8", "--sensitivities", "FILE"], "has losses of bf16, fp8, nvfp4"),
        (["--formats", "auto/fp7", "--sensitivities", "FILE"], "fp7"),
        (
            ["--formats", "auto", "--sensitivities", "FILE", "--backend", "sglang"],
            "use --backend vllm or trtllm",
        ),
    ],
)
def test_formats_per_layer_that_cannot_be_planned_are_refused(capsys, file, change, says):
    given = [file if word == "FILE" else word for word in change]
    assert says in fails(capsys, 2, *PLAN, *given)


def test_published_mixtures_keep_their_commands():
    model = replace(describe_model(MODEL), weight_format="fp8:40.0%nvfp4", moe_format="nvfp4")
    deployment = Deployment(
        model=model,
        system=find_system("b200_sxm"),
        backend="sglang",
        layout=Layout(),
        formats=Formats("fp8:40.0%nvfp4", moe="nvfp4"),
        workload=Workload(100, 10),
        concurrency=1,
    )
    assert not unsupported_mixture(deployment, "sglang")
    unpublished = replace(deployment, model=describe_model(MODEL))
    assert "use --backend vllm or trtllm" in unsupported_mixture(unpublished, "sglang")
    assert not launch(unpublished, "vllm").unsupported
