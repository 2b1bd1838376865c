"""Vidur's profiles: layers, attention, collectives."""

import pandas as pd
import pytest

from foretune.datasets import import_runs
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
LAYERS = (
    "emb",
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)


def vidur(folder, place, table):
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False)
    return path


def mlp(layers=LAYERS, **more):
    times = {
        f"time_stats.{layer}.{stat}": [i + 1.0, i + 2.0]
        for i, layer in enumerate(layers)
        for stat in ("min", "median", "std")
    }
    return pd.DataFrame({**times, **MLP, **more})


def test_the_layers_of_vidur(tmp_path, survives):
    path = vidur(tmp_path, "compute/h100/meta-llama/Llama-2-7b-hf/mlp.csv", mlp())
    done = import_runs(path, "vidur")
    runs = survives(done).set_index("config.implementation")
    assert done.kernels == {"gemm": 8, "elementwise": 8, "norm": 4}
    assert (runs["device"] == "NVIDIA H100 80GB HBM3").all()
    assert (runs["source"] == "vidur mlp.csv meta-llama/Llama-2-7b-hf").all()
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


def test_models_of_vidur_differ_in_their_layers(tmp_path):
    without = [layer for layer in LAYERS if layer != "post_attention_layernorm"]
    path = vidur(tmp_path, "x/a40/microsoft/phi-2/mlp.csv", mlp(without, use_gated_mlp=[False] * 2))
    runs = import_runs(path, "vidur").runs.set_index("config.implementation")
    assert set(runs.loc["input_layernorm"]["problem.op"]) == {"layer_norm"}
    assert set(runs.loc["mlp_act"]["problem.op"]) == {"gelu"}
    assert runs.loc["mlp_up_proj"]["problem.N"].tolist() == [11008, 28672 // 4]
    # Put together, a layer that a model does not have is no rejected row; a missing time is one.
    table = mlp(model=["a", "b"], device=["a100", "h100"])
    table.columns = [c.removeprefix("time_stats.") for c in table]
    table.loc[0, "post_attention_layernorm.median"] = None
    path = tmp_path / "all.parquet"
    table.to_parquet(path)
    done = import_runs(path, "vidur", kernel="norm")
    assert (len(done.runs), done.rejected) == (3, {})
    assert done.runs["problem.op"].tolist() == ["layer_norm", "rms_norm", "rms_norm"]
    assert done.runs["device"].tolist()[0] == "NVIDIA A100 80GB PCIe"
    table = table.assign(model="a")
    table.to_parquet(path)
    done = import_runs(path, "vidur")
    assert (len(done.runs), done.rejected) == (19, {"time is not a number": 1})


def test_attention_of_vidur(tmp_path, survives):
    table = pd.DataFrame(
        {
            "time_stats.attn_prefill.median": [0.5, None, None],
            "time_stats.attn_decode.median": [None, 0.25, None],
            "time_stats.attn_output_reshape.median": [0.001] * 3,
            "n_embd": [8192] * 3,
            "n_q_head": [64] * 3,
            "n_kv_head": [8] * 3,
            "block_size": [16] * 3,
            "num_tensor_parallel_workers": [2] * 3,
            "max_model_len": [4096] * 3,
            "batch_size": [1, 8, 8],
            "prefill_chunk_size": [64, 0, 0],
            "kv_cache_size": [128, 1024, 2048],
            "is_prefill": [True, False, False],
            "attention_backend": ["AttentionBackend.FLASHINFER"] * 3,
        }
    )
    done = import_runs(vidur(tmp_path, "compute/a100/m/n/attention.csv", table), "vidur")
    runs = survives(done)
    assert done.rejected == {"time is not a number": 1}
    assert runs["kernel"].tolist() == ["attention_prefill", "attention_decode"]
    assert runs["problem.seq_len"].tolist()[0] == 64
    assert runs["problem.prefix_len"].tolist()[0] == 128
    assert runs["problem.kv_len"].tolist()[1] == 1025  # the decoded token itself too
    for name, value in {"heads": 32, "kv_heads": 4, "head_dim": 128, "window": 0}.items():
        assert runs[f"problem.{name}"].tolist() == [value] * 2
    assert runs["config.implementation"].tolist() == ["flashinfer"] * 2
    assert runs["config.kv_format"].tolist() == ["fp16"] * 2
    assert runs["time_ms"].tolist() == [0.5, 0.25]


@pytest.mark.parametrize("collective", ["all_reduce", "send_recv"])
def test_collectives_of_vidur(tmp_path, survives, collective):
    table = pd.DataFrame(
        {
            f"time_stats.{collective}.median": [0.017],
            f"time_stats.{collective}.mean": [0.016],
            "rank": [0],
            "num_workers": [2],
            "size": [2048],
            "collective": [collective],
            "devices_per_node": [1],
            "max_devices_per_node": [8],
        }
    )
    path = vidur(tmp_path, f"network/a100_dgx/{collective}.csv", table)
    row = survives(import_runs(path, "vidur")).iloc[0]
    assert (row["kernel"], row["device"]) == (collective, "NVIDIA A100-SXM4-80GB")
    assert (row["problem.message_bytes"], row["problem.devices"]) == (2048, 2)
    assert (row["problem.devices_per_node"], row["time_ms"]) == (1, 0.017)


def test_vidur_must_say_its_device(tmp_path):
    path = vidur(tmp_path, "mlp.csv", mlp())
    with pytest.raises(RunTableError, match="does not name its device: give --device NAME"):
        import_runs(path, "vidur")
    assert import_runs(path, "vidur", device="NVIDIA L4").kernels["gemm"] == 8
    with pytest.raises(RunTableError, match=r"expected columns of mlp\.csv \(n_expanded_embd, …"):
        import_runs(vidur(tmp_path, "x.csv", pd.DataFrame({"a": [1]})), "vidur")
    with pytest.raises(RunTableError, match=r"column 'emb\.median' is missing"):
        import_runs(vidur(tmp_path, "h100/x.csv", mlp([])), "vidur")
