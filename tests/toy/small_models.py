"""Models of any size made in code, with a tokenizer of whole numbers, for real engines."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SPECIAL_WORDS = ("<unk>", "<s>", "</s>")


@dataclass(frozen=True)
class SmallLlama:
    """Sizes of a Llama; weights are random."""

    hidden: int = 512
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    intermediate: int = 1536
    vocab: int = 4096
    context: int = 2048

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def words(self) -> list[str]:
        return [*SPECIAL_WORDS, *(f"w{i}" for i in range(len(SPECIAL_WORDS), self.vocab))]


def write_config(model: SmallLlama, folder: Path) -> Path:
    """Write ``config.json`` and the tokenizer, as engines read them from Hugging Face."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.intermediate,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: i for i, word in enumerate(model.words)},
            "unk_token": "<unk>",
        },
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": model.context,
    }
    files = {
        "config.json": config,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": tokenizer_config,
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def write_gguf(model: SmallLlama, path: Path) -> Path:
    """Write a file for llama.cpp, in single precision; needs the package ``gguf``."""
    import gguf

    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(model.context)
    writer.add_embedding_length(model.hidden)
    writer.add_block_count(model.layers)
    writer.add_feed_forward_length(model.intermediate)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_rope_dimension_count(model.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(model.vocab)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(model.words)
    writer.add_token_scores([0.0] * model.vocab)
    control = len(SPECIAL_WORDS)
    kinds = [gguf.TokenType.CONTROL] * control + [gguf.TokenType.NORMAL] * (model.vocab - control)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def add(name: str, *shape: int) -> None:
        deviation = 1.0 / np.sqrt(shape[-1])
        values = rng.normal(0.0, deviation, shape) if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(name, values.astype(np.float32))

    hidden = model.hidden
    keys = model.kv_heads * model.head_dim
    add("token_embd.weight", model.vocab, hidden)
    for layer in range(model.layers):
        add(f"blk.{layer}.attn_norm.weight", hidden)
        add(f"blk.{layer}.attn_q.weight", hidden, hidden)
        add(f"blk.{layer}.attn_k.weight", keys, hidden)
        add(f"blk.{layer}.attn_v.weight", keys, hidden)
        add(f"blk.{layer}.attn_output.weight", hidden, hidden)
        add(f"blk.{layer}.ffn_norm.weight", hidden)
        add(f"blk.{layer}.ffn_gate.weight", model.intermediate, hidden)
        add(f"blk.{layer}.ffn_up.weight", model.intermediate, hidden)
        add(f"blk.{layer}.ffn_down.weight", hidden, model.intermediate)
    add("output_norm.weight", hidden)
    add("output.weight", model.vocab, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
