"""Commands, checkpoints and notes of a launch: `plan/serve/launching.py`, `plan/serve/commands`."""

import json
import shlex
from dataclasses import replace

import pytest

from foretune.errors import UnknownName, UsageError
from foretune.plan import Formats, Layout, PlanRequest, Workload, find_system, plan
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.describe.description import Mla
from foretune.plan.serve.deployments.deployment import Deployment, Pools
from foretune.plan.serve.launching import LAUNCHERS, launch, launch_commands

H100 = find_system("h100_sxm")


def deploy(model, layout, formats=None, requests=32, pools=None):
    return Deployment(
        model, H100, "vllm", layout, formats or Formats(), Workload(1000, 200), requests, pools
    )


def words(deployment, engine, number=0, replicas=1):
    return list(launch(deployment, engine, replicas).commands[number])


def after(command, flag):
    return command[command.index(flag) + 1]


def test_launch_vllm_dense_model(small):
    command = words(deploy(small, Layout(2, 2), Formats("fp8", kv="fp8")), "vllm")
    assert shlex.join(command) == (
        "vllm serve small --tensor-parallel-size 2 --pipeline-parallel-size 2 --quantization fp8 "
        "--kv-cache-dtype fp8 --max-num-seqs 32 --max-num-batched-tokens 8192 "
        "--max-model-len 1200 "
        "--gpu-memory-utilization 0.9 --port 8000"
    )


def test_launch_sglang_and_trtllm_dense_model(small):
    deployment = deploy(small, Layout(2, 2), Formats("fp8", kv="fp8"))
    assert shlex.join(words(deployment, "sglang")) == (
        "python -m sglang.launch_server --model-path small --tp-size 2 --pp-size 2 "
        "--quantization fp8 --kv-cache-dtype fp8_e4m3 --max-running-requests 32 "
        "--chunked-prefill-size 8192 --cuda-graph-max-bs-decode 32 --mem-fraction-static 0.90 "
        "--context-length 1200 --port 8000"
    )
    plan = launch(deployment, "trtllm")
    assert shlex.join(plan.commands[0]) == (
        "trtllm-serve CHECKPOINT_IN_FP8 --tp_size 2 --pp_size 2 --max_batch_size 16 "
        "--max_num_tokens 8192 --max_seq_len 1200 --port 8000 --config trtllm.yaml"
    )
    assert json.loads(plan.files["trtllm.yaml"])["kv_cache_config"]["dtype"] == "fp8"
    assert any("CHECKPOINT_IN_FP8: small, quantized to fp8" in note for note in plan.notes)


def test_launch_replicas_share_one_vllm_server(small):
    deployment = deploy(small, Layout(2))
    assert after(words(deployment, "vllm", replicas=3), "--data-parallel-size") == "3"
    assert not any("3 servers" in note for note in launch(deployment, "vllm", 3).notes)
    for engine in ("sglang", "trtllm"):
        assert any("3 servers" in note for note in launch(deployment, engine, 3).notes)


def test_launch_vllm_server_has_replicas_of_one_node(small):
    many = launch(deploy(small, Layout(1)), "vllm", 72)
    assert after(list(many.commands[0]), "--data-parallel-size") == "8"
    assert any(note.startswith("start 9 servers") for note in many.notes)
    odd = launch(deploy(small, Layout(2)), "vllm", 5)  # a node holds four
    assert "--data-parallel-size" not in odd.commands[0]
    assert any(note.startswith("start 5 servers") for note in odd.notes)


def test_launch_experts_and_attention_dp(sparse):
    deployment = deploy(sparse, Layout(1, 1, 4, 1, 4), requests=42)
    vllm = words(deployment, "vllm", replicas=2)
    assert after(vllm, "--data-parallel-size") == "4"
    assert "--enable-expert-parallel" in vllm
    assert after(vllm, "--max-num-seqs") == "11"  # of each DP rank
    sglang = words(deployment, "sglang")
    assert (after(sglang, "--tp-size"), after(sglang, "--attn-dp-size")) == ("4", "4")
    assert after(sglang, "--ep-size") == "4"
    assert after(sglang, "--max-running-requests") == "42"  # of all
    plan = launch(deployment, "trtllm")
    assert after(list(plan.commands[0]), "--ep_size") == "4"
    assert '"enable_attention_dp": true' in plan.files["trtllm.yaml"]


def test_launch_unsupported_layout_is_refused(sparse):
    both = deploy(sparse, Layout(4, 1, 1, 2, 2))
    assert "not both" in launch(both, "vllm").unsupported
    assert not launch(both, "sglang").unsupported
    mixed = deploy(sparse, Layout(2, 1, 2, 1, 4))
    assert "attention-DP" in launch(mixed, "trtllm").unsupported
    assert launch_commands(mixed)["trtllm"].startswith("# TensorRT-LLM")
    assert not launch(mixed, "vllm").unsupported


def test_checkpoint_published_quantized_or_placeholder(sparse):
    own = replace(sparse, name="sparse-NVFP4", weight_format="bf16", moe_format="nvfp4")
    as_is = deploy(own, Layout(), Formats("bf16", moe="nvfp4"))
    other = deploy(own, Layout(), Formats("fp8"))
    for engine in LAUNCHERS:
        assert "sparse-NVFP4" in words(as_is, engine)
        assert "--quantization" not in words(as_is, engine)
        assert "CHECKPOINT_IN_FP8" in words(other, engine)
    mixed = launch(deploy(sparse, Layout(), Formats("fp8", moe="int4_wo")), "vllm")
    assert "CHECKPOINT_IN_FP8_INT4_WO" in mixed.commands[0]


@pytest.mark.parametrize(
    ("engine", "flag"),
    [("vllm", "--max-model-len"), ("sglang", "--context-length"), ("trtllm", "--max_seq_len")],
)
def test_launch_longest_request_sets_context(small, engine, flag):
    deployment = deploy(small, Layout(2))
    assert after(words(deployment, engine), flag) == "1200"
    assert after(words(replace(deployment, max_request_tokens=5000), engine), flag) == "5000"


def test_launch_names_wider_cache_than_checkpoint(small):
    eight = replace(small, kv_format="fp8")
    assert after(words(deploy(eight, Layout()), "vllm"), "--kv-cache-dtype") == "bfloat16"
    assert after(words(deploy(eight, Layout()), "sglang"), "--kv-cache-dtype") == "bf16"
    assert "--kv-cache-dtype" not in words(deploy(small, Layout()), "vllm")


B200 = find_system("b200_sxm")


@pytest.mark.parametrize(
    ("engine", "formats", "flags"),
    [
        ("vllm", Formats(kv="nvfp4"), "--kv-cache-dtype nvfp4 "),
        ("vllm", Formats(kv="int4_head"), "--kv-cache-dtype int4_per_token_head "),
        (
            "sglang",
            Formats(kv="fp4_e2m1"),
            "--kv-cache-dtype fp4_e2m1 --attention-backend trtllm_mha ",
        ),
    ],
)
def test_launch_four_bit_cache(small, engine, formats, flags):
    deployment = replace(deploy(small, Layout(), formats), system=B200)
    assert flags in shlex.join(words(deployment, engine))


def test_launch_sglang_attention_backend_of_narrow_cache(small):
    formats = Formats(kv="fp4_e2m1")
    assert (
        after(words(deploy(small, Layout(), formats), "sglang"), "--attention-backend") == "triton"
    )
    latent = replace(small, mla=Mla(24, 16, 8, 4, 8), kv_heads=4)
    deployment = replace(deploy(latent, Layout(), formats), system=B200)
    assert "--attention-backend" not in words(deployment, "sglang")


def test_launch_trtllm_nvfp4_cache_needs_fp8_weights(small):
    deployment = replace(deploy(small, Layout(), Formats("fp8", kv="nvfp4")), system=B200)
    plan = launch(deployment, "trtllm")
    assert '"dtype": "nvfp4"' in plan.files["trtllm.yaml"]
    assert any("scales for an NVFP4 cache" in note for note in plan.notes)
    other = replace(deployment, formats=Formats("nvfp4", kv="nvfp4"))
    assert "only with fp8 weights" in launch(other, "trtllm").unsupported


@pytest.mark.parametrize(
    ("engine", "kind", "system", "why"),
    [
        ("sglang", "nvfp4", B200, "use --backend vllm"),
        ("vllm", "fp4_e2m1", B200, "use --backend sglang"),
        ("trtllm", "int4_head", B200, "TensorRT-LLM has no int4_head cache"),
        ("vllm", "nvfp4", H100, "no kernels for nvfp4 caches on h100_sxm"),
    ],
)
def test_launch_unsupported_cache_is_refused(small, engine, kind, system, why):
    deployment = replace(deploy(small, Layout(), Formats(kv=kind)), system=system)
    assert why in launch(deployment, engine).unsupported
    assert why in launch_commands(deployment)[engine]


def test_launch_latent_four_bit_cache_only_with_sglang(small):
    latent = replace(small, mla=Mla(24, 16, 8, 4, 8), kv_heads=4)
    deployment = replace(deploy(latent, Layout(), Formats(kv="nvfp4")), system=B200)
    assert "for latent attention" in launch(deployment, "vllm").unsupported


def test_launch_three_bit_weights(small, sparse):
    three = deploy(small, Layout(), Formats("int3_wo"))
    assert "CHECKPOINT_IN_INT3_WO" in words(three, "vllm")
    assert any("with GPTQModel" in note for note in launch(three, "sglang").notes)
    assert "no 3-bit weights" in launch(three, "trtllm").unsupported
    assert (
        "no engine has 3-bit experts"
        in launch(deploy(sparse, Layout(), Formats("int3_wo")), "vllm").unsupported
    )


def test_launch_separate_pools_are_servers_and_router(small):
    deployment = deploy(small, Layout(2), requests=60, pools=Pools(Layout(4), 2, 1))
    vllm = launch(deployment, "vllm")
    roles = [after(list(c), "--kv-transfer-config") for c in vllm.commands]
    assert [role.count("producer") for role in roles] == [1, 1, 0]
    assert [after(list(c), "--tensor-parallel-size") for c in vllm.commands] == ["4", "4", "2"]
    sides = {command[0] for command in vllm.commands}
    ports = {after(list(command), "--port") for command in vllm.commands}
    assert len(sides) == len(ports) == 3
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT=5600 vllm serve small" in str(vllm)
    sglang = launch(deployment, "sglang")
    modes = [after(list(c), "--disaggregation-mode") for c in sglang.commands[:3]]
    assert modes == ["prefill", "prefill", "decode"]
    router = list(sglang.commands[3])
    assert router.count("--prefill") == 2
    assert (
        after(router, "--decode") == f"http://127.0.0.1:{after(list(sglang.commands[2]), '--port')}"
    )
    trtllm = launch(deployment, "trtllm")
    assert set(trtllm.files) == {"prefill.yaml", "decode.yaml", "pools.yaml"}
    assert "disable_overlap_scheduler" in trtllm.files["prefill.yaml"]
    assert "disable_overlap_scheduler" not in trtllm.files["decode.yaml"]
    assert '"max_tokens_in_buffer": 1000' in trtllm.files["decode.yaml"]


def test_launch_trtllm_files_are_valid_json(small):
    deployment = deploy(small, Layout(2), pools=Pools(Layout(2), 1, 2))
    files = launch(deployment, "trtllm").files
    joint = json.loads(files["pools.yaml"])
    assert joint["context_servers"] == {"num_instances": 1, "urls": ["localhost:8100"]}
    assert joint["generation_servers"]["urls"] == ["localhost:8200", "localhost:8201"]
    assert json.loads(files["prefill.yaml"])["cache_transceiver_config"]["backend"] == "DEFAULT"


def test_launch_notes_several_nodes(small):
    wide = replace(small, heads=16, kv_heads=16)
    assert any("span 2 nodes" in note for note in launch(deploy(wide, Layout(16)), "vllm").notes)


def test_launch_commands_are_valid_shell_words(small):
    spaced = replace(small, name="my models/a b")
    text = launch_commands(deploy(spaced, Layout()))["vllm"]
    assert shlex.split(text, comments=True)[2] == "my models/a b"


def test_launch_chunked_prefill(small):
    """No engine refuses a workload that was planned for it."""
    deployment = replace(deploy(small, Layout()), workload=Workload(50_000, 100))
    assert after(words(deployment, "vllm"), "--max-num-batched-tokens") == "8192"
    assert after(words(deployment, "sglang"), "--chunked-prefill-size") == "8192"
    assert after(words(deployment, "trtllm"), "--max_num_tokens") == "8192"
    assert '"enable_chunked_prefill": true' in launch(deployment, "trtllm").files["trtllm.yaml"]


def test_launch_unsupported_system_is_refused(small):
    amd = replace(deploy(small, Layout()), system=find_system("mi300x"))
    assert "does not run on mi300x" in launch(amd, "trtllm").unsupported
    assert not launch(amd, "vllm").unsupported
    assert not launch(amd, "sglang").unsupported
    clocks = StepTimerFactory(None)
    with pytest.raises(UsageError, match="TensorRT-LLM does not run on mi300x"):
        plan(
            PlanRequest(
                model=small,
                systems=(amd.system,),
                gpus=1,
                workload=Workload(100, 10),
                engine="trtllm",
            ),
            clocks,
        )


def test_launch_unknown_engine_is_named(small):
    with pytest.raises(UnknownName, match="did you mean 'vllm'"):
        launch(deploy(small, Layout()), "vlm")


def test_launch_weights_without_kernels_are_refused(small):
    six_bits = launch(deploy(small, Layout(), Formats("int6_wo_g64b")), "vllm")
    assert "no engine has kernels for int6_wo weights on h100_sxm" in six_bits.unsupported
    assert launch(deploy(small, Layout(), Formats("int4_wo_g32")), "vllm").unsupported == ""
