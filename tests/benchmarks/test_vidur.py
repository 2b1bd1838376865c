"""Vidur's profiles of layers: `benchmarks/vidur.py`."""

import pandas as pd
import pytest
from vidur import LAYERS, read_profiles

from foretune.errors import RunTableError

MLP = {
    "n_head": [32, 64],
    "n_kv_head": [32, 8],
    "n_embd": [4096, 8192],
    "n_expanded_embd": [11008, 28672],
    "vocab_size": [32768, 32768],
    "use_gated_mlp": [True, True],
    "num_tokens": [100, 200],
    "num_tensor_parallel_workers": [1, 4],
}


def mlp(layers=LAYERS, **more):
    times = {
        f"time_stats.{layer}.{stat}": [i + 1.0, i + 2.0]
        for i, layer in enumerate(layers)
        for stat in ("min", "median", "std")
    }
    models = {"model": ["meta-llama/Llama-2-7b-hf", "b"], "device": ["h100", "h100"]}
    return pd.DataFrame({**times, **MLP, **models, **more})


def read(folder, table):
    path = folder / "mlp.parquet"
    table.to_parquet(path)
    return read_profiles(path).set_index("config.implementation")


def test_read_profiles_layers_have_sizes_of_one_rank(tmp_path):
    runs = read(tmp_path, mlp())
    assert runs["kernel"].value_counts().to_dict() == {"gemm": 8, "elementwise": 8, "norm": 4}
    assert (runs["device"] == "NVIDIA H100 80GB HBM3").all()
    assert runs["source"].iloc[0] == "vidur mlp.parquet meta-llama/Llama-2-7b-hf"
    assert (runs["config.format"] == "fp16").all()
    assert (runs["config.backend"] == "vidur").all()

    def problem(layer, row, *names):
        return [runs.loc[layer].iloc[row][f"problem.{n}"] for n in names]

    # The second model has four ranks and grouped queries; heads are 128 wide.
    for layer, sizes in {
        "attn_pre_proj": ([100, 12288, 4096], [200, (64 + 16) * 128 // 4, 8192]),
        "attn_post_proj": ([100, 4096, 4096], [200, 8192, 8192 // 4]),
        "mlp_up_proj": ([100, 22016, 4096], [200, 2 * 28672 // 4, 8192]),
        "mlp_down_proj": ([100, 4096, 11008], [200, 8192, 28672 // 4]),
    }.items():
        assert [problem(layer, i, *"MNK") for i in (0, 1)] == list(sizes)
    for layer, op, columns in (
        ("input_layernorm", "rms_norm", 8192),
        ("post_attention_layernorm", "rms_norm", 8192),
        ("add", "add", 8192),
        ("emb", "embedding", 8192),
        ("mlp_act", "silu_and_mul", 7168),
        ("attn_rope", "rope", (64 + 8) * 128 // 4),
    ):
        assert problem(layer, 1, "rows", "columns", "op") == [200, columns, op]
    assert runs.loc["mlp_up_proj"]["time_ms"].tolist() == [7.0, 8.0]  # medians
    for layer in ("input_layernorm", "add", "attn_rope"):  # a product's shape says it already
        assert runs.loc[layer]["config.tp"].tolist() == [1, 4]
    assert runs.loc["attn_pre_proj"]["config.tp"].isna().all()


def test_read_profiles_model_without_second_norm_has_layer_norm(tmp_path):
    without = [layer for layer in LAYERS if layer != "post_attention_layernorm"]
    runs = read(tmp_path, mlp(without, use_gated_mlp=[False] * 2))
    assert set(runs.loc["input_layernorm"]["problem.op"]) == {"layer_norm"}
    assert set(runs.loc["mlp_act"]["problem.op"]) == {"gelu"}
    assert runs.loc["mlp_up_proj"]["problem.N"].tolist() == [11008, 28672 // 4]


def test_read_profiles_layer_that_one_model_lacks_is_no_row(tmp_path):
    table = mlp(model=["a", "b"], device=["a100", "h100"])
    table.loc[0, "time_stats.post_attention_layernorm.median"] = None
    norms = read(tmp_path, table).query("kernel == 'norm'")
    assert norms["problem.op"].tolist() == ["layer_norm", "rms_norm", "rms_norm"]
    assert norms["device"].tolist()[0] == "NVIDIA A100 80GB PCIe"


def test_read_profiles_missing_column_is_refused(tmp_path):
    with pytest.raises(RunTableError, match=r"column 'emb\.median' is missing"):
        read(tmp_path, mlp([]))
