"""Every flag and option of a command is one that the engine of the printed version has.

* vLLM, SGLang: the frozen lists are read from the wheels' own parsers.
* SGLang's router: its sources of 0.2.2.
* TensorRT-LLM: ``tensorrt_llm/commands/serve.py`` and ``tensorrt_llm/llmapi/llm_args.py``, about
  1.2; not every name was looked up. ``--config`` is another name of ``--extra_llm_api_options``.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from foretune.plan import Formats, Layout, Speculation, Workload, find_system
from foretune.plan.describe.engines import ENGINES
from foretune.plan.describe.layout import Offload
from foretune.plan.serve.deployments.deployment import Deployment, Pools
from foretune.plan.serve.launching import launch, launch_commands

FOLDER = Path(__file__).with_name("flags")
FLAGS = {
    engine: set((FOLDER / f"{engine}-{ENGINES[engine]['version']}.txt").read_text().split())
    for engine in ("vllm", "sglang")
}
"""Engine -> all flags of the version that commands are for, from ``benchmarks/plan_flags.py``."""
SGLANG_ROUTER = {"--pd-disaggregation", "--prefill", "--decode", "--host", "--port", "--policy"}

TRTLLM = {
    "--host",
    "--port",
    "--backend",
    "--log_level",
    "--max_beam_width",
    "--max_batch_size",
    "--max_num_tokens",
    "--max_seq_len",
    "--tp_size",
    "--pp_size",
    "--ep_size",
    "--cluster_size",
    "--gpus_per_node",
    "--kv_cache_free_gpu_memory_fraction",
    "--num_postprocess_workers",
    "--trust_remote_code",
    "--extra_llm_api_options",
    "--config",
    "--reasoning_parser",
    "--metadata_server_config_file",
    "--server_role",
    "--enable_chunked_prefill",
    "--fail_fast_on_attention_window_too_large",
    "--disagg_cluster_uri",
    "--media_io_kwargs",
}
TRTLLM_POOLS = {"-c", "--config_file", "-m", "-t", "-r", "-l", "--log_level"}
TRTLLM_OPTIONS = {
    "kv_cache_config": {
        "dtype",
        "enable_block_reuse",
        "free_gpu_memory_fraction",
        "max_attention_window",
        "max_tokens",
        "host_cache_size",
        "tokens_per_block",
    },
    "cuda_graph_config": {"batch_sizes", "max_batch_size", "enable_padding"},
    "cache_transceiver_config": {"backend", "max_tokens_in_buffer"},
    "enable_chunked_prefill": set(),
    "enable_attention_dp": set(),
    "disable_overlap_scheduler": set(),
    "moe_config": {"backend", "max_num_tokens", "load_balancer"},
    "speculative_config": {"decoding_type", "num_nextn_predict_layers"},
    "stream_interval": set(),
}
"""Options of a file -> those within them; none where they are plain values."""


def deploy(model, layout, formats=None, pools=None, offload=None):
    load = Workload(16384, 200, 1024)
    h100 = find_system("h100_sxm")
    return Deployment(
        model,
        h100,
        "vllm",
        layout,
        formats or Formats(),
        load,
        32,
        pools,
        offload=offload or Offload(),
    )


DEPLOYMENTS = {
    "dense": {"layout": Layout(2, 2), "formats": Formats("fp8", kv="fp8")},
    "experts": {"layout": Layout(1, 1, 4, 1, 4)},
    "copies": {"layout": Layout(1, 1, 12, 1, 12)},
    "pools": {"layout": Layout(2), "pools": Pools(Layout(4), 2, 1)},
    "offload": {"layout": Layout(2), "offload": Offload(4, 20)},
}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_launch_flags_exist_in_engine(name, small, sparse):
    """Their own argument parsers take what they are started with."""
    wide = replace(sparse, experts=32)
    model = {"experts": sparse, "copies": wide}.get(name, small)
    deployment = deploy(model, **DEPLOYMENTS[name])
    for engine, flags in {**FLAGS, "trtllm": TRTLLM}.items():
        for command in launch(deployment, engine).commands:
            allowed = flags
            if "sglang_router.launch_router" in command:
                allowed = SGLANG_ROUTER
            if "disaggregated" in command:
                allowed = TRTLLM_POOLS
            assert {word for word in command if word.startswith("-") and word != "-m"} <= allowed


def test_launch_commands_name_engine_version(small):
    for engine, text in launch_commands(deploy(small, Layout(2))).items():
        assert text.startswith("# for ")
        assert text.splitlines()[0].endswith(ENGINES[engine]["version"])


def test_trtllm_options_are_known(sparse):
    pooled = deploy(sparse, Layout(1, 1, 4, 1, 4), pools=Pools(Layout(1, 1, 4, 1, 4), 1, 1))
    files = launch(pooled, "trtllm").files
    for file in ("prefill.yaml", "decode.yaml"):
        for option, value in json.loads(files[file]).items():
            inner = set(value) if isinstance(value, dict) else set()
            assert inner <= TRTLLM_OPTIONS[option]


def test_launch_commands_draft_tokens(small, sparse):
    own = deploy(sparse, Layout(1, 1, 4, 1, 4))
    own = replace(own, speculation=Speculation(2, 0.7))
    vllm, sglang = (list(launch(own, engine).commands[0]) for engine in ("vllm", "sglang"))
    assert vllm[vllm.index("--speculative-config") + 1] == (
        '{"method":"mtp","num_speculative_tokens":2}'
    )
    at = sglang.index("--speculative-algorithm")
    assert sglang[at : at + 8] == [
        "--speculative-algorithm",
        "EAGLE",
        "--speculative-num-steps",
        "2",
        "--speculative-eagle-topk",
        "1",
        "--speculative-num-draft-tokens",
        "3",
    ]
    assert {w for w in vllm if w.startswith("--")} <= FLAGS["vllm"]
    assert {w for w in sglang if w.startswith("--")} <= FLAGS["sglang"]
    options = json.loads(launch(own, "trtllm").files["trtllm.yaml"])["speculative_config"]
    assert options == {"decoding_type": "MTP", "num_nextn_predict_layers": 2}
    assert set(options) <= TRTLLM_OPTIONS["speculative_config"]
    other = replace(deploy(small, Layout(2)), speculation=Speculation(2, 0.7, small))
    assert "differs between versions" in launch(other, "trtllm").unsupported
    assert "STANDALONE" in launch(other, "sglang").commands[0]
    assert '"method":"draft_model"' in " ".join(launch(other, "vllm").commands[0])


def test_launch_commands_redundant_experts_fill_ranks(sparse):
    wide = deploy(replace(sparse, experts=32), Layout(1, 1, 12, 1, 12))
    vllm = list(launch(wide, "vllm").commands[0])
    assert vllm[vllm.index("--eplb-config") + 1] == '{"num_redundant_experts":4}'
    sglang = list(launch(wide, "sglang").commands[0])
    assert sglang[sglang.index("--ep-num-redundant-experts") + 1] == "4"
    assert '"num_slots": 36' in launch(wide, "trtllm").files["trtllm.yaml"]
