"""Tests imports of AIConfigurator's operator tables: `datasets/importers/aiconfigurator.py`."""

import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.datasets import import_runs
from foretune.datasets.importers import aiconfigurator
from foretune.datasets.importers.aiconfigurator import operation_of
from foretune.errors import RunTableError
from foretune.support import operator_package

LABELS = {"framework": ["TRTLLM"], "version": ["1.3.0rc20"], "device": ["NVIDIA H200"]}


def aic(folder, op, place="h200_sxm/gemm/trtllm/1.3.0rc20", suffix=".parquet", **columns):
    """Write a table of AIConfigurator as its package holds it; return its path."""
    path = folder / place / f"{op}_perf{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = len(columns["kernel_source"])
    labels = {name: value * rows for name, value in LABELS.items()}
    table = pd.DataFrame({**labels, **columns})
    table.to_parquet(path) if suffix == ".parquet" else table.to_csv(path, index=False)
    return path


def gemm(folder, **more):
    rows = {
        "gemm_dtype": ["bfloat16", "sq"],
        "m": [1, 32768],
        "n": [32, 4096],
        "k": [64, 128],
        "latency": [0.002, 1.5],
        **more,
    }
    place = {k: rows.pop(k) for k in ("place", "suffix") if k in rows}
    return aic(folder, "gemm", kernel_source=["torch_flow"] * 2, **rows, **place)


@pytest.mark.parametrize("suffix", [".parquet", ".txt"])
def test_read_gemm(tmp_path, survives, suffix):
    runs = survives(import_runs(gemm(tmp_path, suffix=suffix), "aiconfigurator"))
    row = runs.iloc[1]
    assert (row["kernel"], row["device"], row["status"]) == ("gemm", "NVIDIA H200", "ok")
    assert [row[f"problem.{n}"] for n in "MNK"] == [32768, 4096, 128]
    assert runs["config.format"].tolist() == ["bf16", "int8"]
    assert (row["config.backend"], row["config.implementation"]) == ("trtllm", "torch_flow")
    assert (row["time_ms"], row["environment"]) == (1.5, "trtllm 1.3.0rc20")
    assert row["source"] == f"aiconfigurator gemm_perf{suffix}"
    assert row["device.memory_gbps"] == 4800
    assert {c.partition(".")[0] for c in runs} >= {"problem", "config", "device"}
    assert "problem.batch" not in runs


def test_read_system_from_folders(tmp_path):
    for place, device in {
        "data/rtx_pro_6000_server/vllm/0.24.0": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "gb200/gemm/sglang/0.5.14": "NVIDIA GB200",
        "somewhere/else": "NVIDIA H200",
    }.items():
        runs = import_runs(gemm(tmp_path, place=place), "aiconfigurator").runs
        assert runs["device"].tolist() == [device] * 2
        known = "else" not in place
        backend = place.split("/")[-2] if known else "trtllm"
        assert runs["config.backend"].tolist() == [backend] * 2


def test_read_system_from_columns(tmp_path):
    path = tmp_path / "gemm.parquet"
    pd.DataFrame(
        {
            "kernel_source": ["a", "b"],
            "gemm_dtype": ["fp8", "fp8"],
            "m": [1, 2],
            "n": [3, 4],
            "k": [5, 6],
            "latency": [0.1, 0.2],
            "system": ["a100_sxm", "abacus"],
            "backend": ["vllm", "sglang"],
            "backend_version": ["0.14.0", "0.5.10"],
        }
    ).to_parquet(path)
    runs = import_runs(path, "aiconfigurator").runs
    assert runs["device"].tolist() == ["NVIDIA A100-SXM4-80GB", "abacus"]
    assert runs["environment"].tolist() == ["vllm 0.14.0", "sglang 0.5.10"]
    runs = import_runs(path, "aiconfigurator", device="NVIDIA L40S").runs
    assert runs["device"].tolist() == ["NVIDIA L40S"] * 2


def attention(**more):
    return {
        "kernel_source": ["fa3"] * 2,
        "batch_size": [1, 8],
        "isl": [16, 1],
        "num_heads": [64, 64],
        "num_key_value_heads": [8, 0],
        "head_dim": [128, 64],
        "beam_width": [1, 1],
        "attn_dtype": ["bfloat16"] * 2,
        "kv_cache_dtype": ["fp8", "bfloat16"],
        "step": [0, 255],
        "latency": [0.1, 0.2],
        **more,
    }


def test_read_attention(tmp_path):
    path = aic(tmp_path, "context_attention", **attention(window_size=[None, 128]))
    runs = import_runs(path, "aiconfigurator").runs
    assert runs["kernel"].unique().tolist() == ["attention_prefill"]
    assert runs["problem.kv_heads"].tolist() == [8, 64]  # 0 stands for as many as heads
    assert runs["problem.window"].tolist() == [0, 128]
    assert runs["problem.seq_len"].tolist() == [16, 1]
    assert runs["problem.prefix_len"].tolist() == [0, 255]
    assert runs["config.kv_format"].tolist() == ["fp8", "bf16"]
    assert not [c for c in runs if "beam" in c]
    runs = import_runs(aic(tmp_path, "generation_attention", **attention()), "aiconfigurator").runs
    assert runs["problem.kv_len"].tolist() == [16, 256]
    assert runs["problem.window"].tolist() == [0, 0]
    assert not {"problem.seq_len", "problem.prefix_len"} & set(runs)
    columns = {k: v for k, v in attention().items() if k not in ("step", "kv_cache_dtype")}
    columns.pop("num_key_value_heads")
    runs = import_runs(aic(tmp_path, "encoder_attention", **columns), "aiconfigurator").runs
    assert runs["problem.kv_heads"].tolist() == [64, 64]
    assert runs["kernel"].unique().tolist() == ["attention_encoder"]


def test_read_latent_attention(tmp_path):
    columns = {
        "kernel_source": ["default"],
        "mla_dtype": ["bfloat16"],
        "kv_cache_dtype": ["fp8"],
        "num_heads": [16],
        "batch_size": [4],
        "isl": [1],
        "tp_size": [8],
        "step": [127],
        "latency": [0.1],
    }
    module = {**columns, "model": ["M"], "architecture": ["A"], "gemm_type": ["fp8_block"]}
    for op, kernel, table in (
        ("context_mla", "mla_prefill", columns),
        ("generation_mla", "mla_decode", columns),
        ("mla_context_module", "mla_prefill_module", module),
        ("mla_generation_module", "mla_decode_module", module),
    ):
        row = import_runs(aic(tmp_path, op, **table), "aiconfigurator").runs.iloc[0]
        assert row["kernel"] == kernel
        assert (row["problem.batch"], row["problem.heads"], row["config.tp"]) == (4, 16, 8)
        sizes = {c.removeprefix("problem."): row[c] for c in row.index if c.endswith("_len")}
        assert sizes == (
            {"kv_len": 128} if "decode" in kernel else {"seq_len": 1, "prefix_len": 127}
        )
        if "module" in kernel:
            assert (row["problem.model"], row["config.gemm_format"]) == ("M", "fp8_block")


def test_read_experts(tmp_path):
    columns = {
        "kernel_source": ["k"],
        "moe_dtype": ["w4a16_mxfp4"],
        "num_tokens": [16],
        "hidden_size": [4096],
        "inter_size": [1536],
        "topk": [8],
        "num_experts": [128],
        "moe_tp_size": [2],
        "moe_ep_size": [4],
        "distribution": ["power_law_1.2"],
        "latency": [0.1],
        "power": [300.0],
        "power_limit": [500.0],
    }
    row = import_runs(aic(tmp_path, "moe", **columns), "aiconfigurator").runs.iloc[0]
    names = ("tokens", "hidden", "intermediate", "top_k", "experts", "distribution")
    assert [row[f"problem.{n}"] for n in names] == [16, 4096, 1536, 8, 128, "power_law_1.2"]
    assert (row["config.tp"], row["config.ep"], row["config.format"]) == (2, 4, "w4a16_mxfp4")
    assert (row["power_w"], row["device.power_limit_w"]) == (300, 500)


def test_read_collectives(tmp_path):
    ops = ["all_gather", "alltoall", "reduce_scatter", "all_reduce"]
    columns = {
        "kernel_source": ["NCCL"] * 4,
        "nccl_dtype": ["half", "int8"] * 2,
        "num_gpus": [2] * 4,
        "message_size": [256] * 4,
        "latency": [0.01] * 4,
    }
    path = aic(tmp_path, "nccl", "h100_sxm/comm/nccl/2.29.2", **columns, op_name=ops)
    runs = import_runs(path, "aiconfigurator").runs
    assert runs["kernel"].tolist() == ["all_gather", "all_to_all", "reduce_scatter", "all_reduce"]
    assert runs["problem.message_bytes"].tolist() == [512, 256] * 2  # it counts elements
    assert runs["config.backend"].tolist() == ["nccl"] * 4
    assert "problem.op" not in runs
    assert len(import_runs(path, "aiconfigurator", kernel="all_to_all").runs) == 1
    columns = {
        "kernel_source": ["TRTLLM"],
        "allreduce_dtype": ["bfloat16"],
        "num_gpus": [8],
        "message_size": [1024],
        "latency": [0.01],
        "backend": ["sglang_graph"],
        "implementation": ["trtllm"],
    }
    row = import_runs(aic(tmp_path, "custom_allreduce", **columns), "aiconfigurator").runs.iloc[0]
    assert (row["kernel"], row["problem.message_bytes"]) == ("all_reduce", 2048)
    assert (row["problem.devices"], row["config.implementation"]) == (8, "TRTLLM")
    assert row["config.backend"] == "trtllm"
    columns["allreduce_dtype"] = ["fp3"]
    with pytest.raises(RunTableError, match="bytes of number format 'fp3' are unknown"):
        import_runs(aic(tmp_path, "custom_allreduce", **columns), "aiconfigurator")


def test_read_quantization(tmp_path):
    columns = {"kernel_source": ["a"] * 2, "m": [1, 2], "k": [32, 64], "quant_dtype": ["fp8"] * 2}
    for op, name in (("computescale", "compute_scale"), ("scale_matrix", "scale_matrix")):
        done = import_runs(aic(tmp_path, op, **columns, latency=[0.0, 0.1]), "aiconfigurator")
        assert done.rejected == {"time is zero": 1}
        row = done.runs.iloc[0]
        assert (row["kernel"], row["problem.op"], row["problem.M"]) == ("quantize", name, 2)


def test_read_other_operations_keep_name(tmp_path):
    columns = {
        "kernel_source": ["k"],
        "op_name": ["pre"],
        "architecture": ["A"],
        "num_tokens": [4],
        "hc_mult": [4],
        "fused": [True],
        "pre_dispatch": ["jit"],
        "latency": [0.1],
    }
    row = import_runs(aic(tmp_path, "mhc_module", **columns), "aiconfigurator").runs.iloc[0]
    assert (row["kernel"], row["problem.op"]) == ("mhc_module", "pre")
    assert (row["problem.tokens"], row["problem.hc_mult"]) == (4, 4)
    assert (row["config.fused"], row["config.pre_dispatch"]) == (True, "jit")


def test_read_expert_exchange_becomes_two_rows(tmp_path):
    columns = {
        "kernel_source": ["deepep"] * 2,
        "op_name": ["normal"] * 2,
        "node_num": [1, 2],
        "num_token": [8, 16],
        "dispatch_sms": [4, 8],
        "dispatch_transmit_us": [20.0, 30.0],
        "dispatch_notify_us": [5.0, None],
        "combine_sms": [12, 16],
        "combine_transmit_us": [40.0, 50.0],
        "combine_notify_us": [0.0, 0.0],
    }
    done = import_runs(aic(tmp_path, "wideep_deepep_normal", **columns), "aiconfigurator")
    assert done.rejected == {"time is not a number": 1}
    assert done.runs["problem.phase"].tolist() == ["dispatch", "combine", "combine"]
    assert done.runs["time_ms"].tolist() == pytest.approx([0.025, 0.04, 0.05])
    assert done.runs["config.sms"].tolist() == [4, 12, 16]
    assert done.runs["device"].tolist() == ["NVIDIA H200"] * 3
    columns = {
        "kernel_source": ["deepep"],
        "phase": ["combine"],
        "comm_dtype": ["bfloat16"],
        "num_tokens": [16],
        "transmit_us": [98.0],
        "notify_us": [2.0],
        "latency": [100.0],
    }
    row = import_runs(aic(tmp_path, "moe_a2a", **columns), "aiconfigurator").runs.iloc[0]
    assert row["time_ms"] == pytest.approx(0.1)


def test_read_power_without_latency(tmp_path, survives):
    path = gemm(tmp_path, power=[300.0, 400.0], power_limit=[700.0, 700.0])
    pd.read_parquet(path).drop(columns="latency").to_parquet(path)
    runs = survives(import_runs(path, "aiconfigurator"))
    assert runs["power_w"].tolist() == [300, 400]
    assert runs["time_ms"].isna().all()
    assert (runs["status"] == "ok").all()


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("gemm_perf.parquet", "gemm"),
        ("power_h200_gemm.parquet", "gemm"),
        ("oneccl.csv", "oneccl"),
        ("wideep_context_mla.parquet", "wideep_context_mla"),
        ("news_perf.txt", "news"),
    ],
)
def test_operation_of_file_name(tmp_path, name, op):
    assert operation_of(tmp_path / name) == op


def test_read_incomplete_table_is_refused(tmp_path):
    path = gemm(tmp_path)
    table = pd.read_parquet(path)
    table.drop(columns="latency").to_parquet(path)
    with pytest.raises(RunTableError, match=r"table of gemm: column 'latency' is missing"):
        import_runs(path, "aiconfigurator")
    table.drop(columns="gemm_dtype").to_parquet(path)
    with pytest.raises(RunTableError, match=r"'gemm_dtype' is missing \(expected: kernel_source, "):
        import_runs(path, "aiconfigurator")
    path = gemm(tmp_path, place="elsewhere")
    table.drop(columns="framework").to_parquet(path)
    with pytest.raises(RunTableError, match="BACKEND/VERSION, so it needs columns for them"):
        import_runs(path, "aiconfigurator")


@pytest.mark.parametrize("package", ["aiconfigurator_core", "aisimulate_core"])
def test_locate_installed_tables(tmp_path, monkeypatch, package):
    data = tmp_path / package / "systems" / "data"
    gemm(data)
    gemm(data, place="a100_sxm/gemm/vllm/0.14.0")
    (tmp_path / package / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package, raising=False)  # another test's
    monkeypatch.setattr(operator_package, "PACKAGES", (package,))
    assert len(import_runs("installed", "aiconfigurator").runs) == 4
    assert import_runs("a100_sxm", "aiconfigurator").runs["config.backend"].tolist() == ["vllm"] * 2
    with pytest.raises(RunTableError, match="b60 does not exist"):
        import_runs("b60", "aiconfigurator")


@pytest.mark.parametrize("place", ["installed", "h200_sxm"])
def test_locate_without_package_is_refused(monkeypatch, place):
    monkeypatch.setattr(aiconfigurator, "installed_tables", lambda: None)
    with pytest.raises(RunTableError, match="pip install aiconfigurator-core, or give a folder"):
        import_runs(place, "aiconfigurator")


def test_read_renamed_sample(tmp_path):
    table = pd.DataFrame(
        {
            "kernel_source": "x",
            "gemm_dtype": "bfloat16",
            "m": [1, 2, 3],
            "n": 64,
            "k": 64,
            "latency": [0.1, 0.2, 0.3],
            "system": "h100_sxm",
            "backend": "vllm",
            "backend_version": "1",
        }
    ).iloc[[2, 0]]
    table.to_parquet(tmp_path / "some.parquet")
    runs = import_runs(tmp_path / "some.parquet", "aiconfigurator").runs
    assert runs["kernel"].tolist() == ["gemm", "gemm"]
    assert runs["time_ms"].tolist() == [0.3, 0.1]
    assert runs["problem.M"].tolist() == [3, 1]


@pytest.mark.parametrize(
    ("isl", "step", "kernel"), [(1, 7, "attention_decode"), (64, 0, "attention_prefill")]
)
def test_operation_of_columns_tells_prefill_from_decode(tmp_path, isl, step, kernel):
    table = pd.DataFrame(
        {
            "kernel_source": ["x"],
            "batch_size": 1,
            "isl": isl,
            "num_heads": 8,
            "step": step,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "attn_dtype": "fp8",
            "kv_cache_dtype": "fp8",
            "latency": 0.1,
            "system": "h100_sxm",
            "backend": "vllm",
            "backend_version": "1",
        }
    )
    table.to_parquet(tmp_path / "some.parquet")
    assert import_runs(tmp_path / "some.parquet", "aiconfigurator").runs["kernel"][0] == kernel


TABLE = st.lists(
    st.tuples(
        st.integers(1, 2**31 - 1),
        st.one_of(st.none(), st.floats(), st.sampled_from([0.0, 1.0])),
        st.sampled_from(["bfloat16", "fp8_block", "new"]),
    ),
    min_size=1,
    max_size=6,
)


@given(TABLE)
def test_import_runs_counts_every_row(tmp_path, survives, rows):
    sizes, times, formats = zip(*rows, strict=True)
    path = aic(
        tmp_path,
        "gemm",
        kernel_source=["k"] * len(rows),
        gemm_dtype=formats,
        m=sizes,
        n=sizes,
        k=sizes,
        latency=pd.array(times, dtype="float64"),
    )
    done = import_runs(path, "aiconfigurator")
    assert len(done.runs) + sum(done.rejected.values()) == len(rows)
    if len(done.runs):
        good = [m for m, t, _ in rows if t is not None and 0 < t < np.inf]
        assert survives(done)["problem.M"].tolist() == good
