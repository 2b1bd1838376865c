"""Encoders of images and sound: their weights, beside published or real ones."""

import pytest

from foretune.plan.cost.memory import weight_bytes
from foretune.plan.describe.encoders import encoder_weights
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.huggingface import read_config
from foretune.plan.describe.layout import Layout

QWEN2_VL = {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4}
QWEN2_5_VL = {
    "model_type": "qwen2_5_vl",
    "depth": 32,
    "hidden_act": "silu",
    "hidden_size": 1280,
    "intermediate_size": 3420,
}
QWEN3_VL = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304}
SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
INTERN_6B = {"hidden_size": 3200, "intermediate_size": 12800, "num_hidden_layers": 45}
MLLAMA = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_global_layers": 8,
}
GLM = {"model_type": "glm4v_moe", "depth": 24, "hidden_size": 1536, "intermediate_size": 13696}
WHISPER = {"d_model": 1280, "encoder_layers": 32, "encoder_ffn_dim": 5120}
TEXT = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
}


@pytest.mark.parametrize(
    ("vision", "hidden", "millions"),
    [
        # Numbers of the classes in transformers 5.19, or as published.
        pytest.param({**QWEN2_VL, "spatial_merge_size": 2}, 3584, 676, id="qwen2-vl"),
        pytest.param({**QWEN2_5_VL, "spatial_merge_size": 2}, 3584, 676, id="qwen2.5-vl"),
        pytest.param(
            {**QWEN3_VL, "spatial_merge_size": 2, "deepstack_visual_indexes": [8, 16, 24]},
            4096,
            567,
            id="qwen3-vl",
        ),
        pytest.param(SIGLIP, 2560, 420, id="gemma-3"),
        pytest.param(INTERN_6B, 8192, 5_600, id="internvl"),
        pytest.param(MLLAMA, 4096, 868, id="llama-3.2-vision"),
        pytest.param(GLM, 4096, 892, id="glm-4.5v"),
        pytest.param({"model_type": "pixtral", "head_dim": 64}, 5120, 439, id="sizes-left-out"),
    ],
)
def test_weights_of_image_encoders(vision: dict, hidden: int, millions: float):
    counted = encoder_weights({"vision_config": vision}, hidden)
    assert counted / 1e6 == pytest.approx(millions, rel=0.08)


def test_sound_and_images_of_one_model():
    both = {"vision_config": SIGLIP, "audio_config": WHISPER}
    image, sound = (encoder_weights({part: config}, 2048) for part, config in both.items())
    assert sound / 1e6 == pytest.approx(640, rel=0.05)
    assert encoder_weights({"thinker_config": both}, 2048) == image + sound


@pytest.mark.parametrize(
    "vision", [None, "siglip", {}, {"model_type": "gemma3n_vision"}, {"hidden_size": "1152"}]
)
def test_unknown_encoders_have_no_weights(vision: object):
    assert encoder_weights({"vision_config": vision}, 2048) == 0


def test_encoders_are_in_memory():
    text = read_config({"text_config": TEXT}, "text")
    model = read_config({"text_config": TEXT, "vision_config": SIGLIP}, "both")
    more = model.encoder_weights
    assert text.encoder_weights == 0
    assert model.images
    assert model.parameters() == text.parameters()
    for layout in (Layout(), Layout(tp=2)):
        held, alone = (weight_bytes(each, layout, Formats()) for each in (model, text))
        assert held - alone == pytest.approx(2 * more / layout.tp)
