"""Models that published training runs are about, and small ones."""

import pytest

from foretune.plan import ModelDescription
from foretune.plan.describe.huggingface import read_config


def gpt(hidden: int, heads: int, layers: int, vocab: int = 51200) -> ModelDescription:
    """Return a model like GPT-3."""
    config = {
        "model_type": "gpt_neox",
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "intermediate_size": 4 * hidden,
        "vocab_size": vocab,
        "tie_word_embeddings": True,
    }
    return read_config(config, f"gpt-{hidden}x{layers}")


@pytest.fixture
def gpt_22b() -> ModelDescription:
    return gpt(6144, 64, 48)


@pytest.fixture
def gpt_175b() -> ModelDescription:
    return gpt(12288, 96, 96)
