"""What a family's class does, whatever its file says."""

import pytest

from foretune.errors import UsageError
from foretune.plan.describe.huggingface import read_config

QWEN3_5 = {
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "num_hidden_layers": 8,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}


def test_qwen3_5_has_a_gate_on_attention_though_its_file_says_nothing():
    silent = read_config(QWEN3_5, "it")
    stated = read_config({**QWEN3_5, "attn_output_gate": True}, "it")
    assert silent == stated
    assert silent.gated_attention


@pytest.mark.parametrize("family", ["afmoe", "beam", "muse_glimmer_text"])
def test_family_has_a_gate_on_attention_though_its_file_says_nothing(family):
    sizes = {name: QWEN3_5[name] for name in QWEN3_5 if not name.startswith("linear")}
    assert read_config({**sizes, "model_type": family}, "it").gated_attention


def test_hy_v4_is_refused_for_its_residual_streams():
    config = {**QWEN3_5, "model_type": "hy_v4", "architectures": ["HYV4ForCausalLM"]}
    with pytest.raises(UsageError, match="with several residual streams"):
        read_config(config, "it")
