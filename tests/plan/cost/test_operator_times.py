"""Operator times: measured where measured, else the nearest thing to it, never a refusal."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from foretune.device import find_device
from foretune.plan.cost.tables import OperatorTables, default_folders
from foretune.plan.cost.times import OperatorTimer

H100 = find_device("NVIDIA H100 80GB HBM3")
H200 = find_device("NVIDIA H200")


def gemm_table(kind: str, slower: float = 1.0) -> pd.DataFrame:
    sizes = [2**i for i in range(8, 14)]
    rows = [(m, n, k) for m in (1, 16, 256, 4096) for n in sizes for k in sizes]
    table = pd.DataFrame(rows, columns=["m", "n", "k"])
    work = 2.0 * table["m"] * table["n"] * table["k"] / 5e11 + table["n"] * table["k"] / 2e9
    return table.assign(gemm_dtype=kind, kernel_source="x", latency=slower * (0.004 + work))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two engines on one system, the first in two versions, the newest one incomplete."""
    for backend, version, table in (
        ("vllm", "0.9.0", gemm_table("bfloat16", slower=2.0)),
        ("vllm", "0.10.0", gemm_table("bfloat16")),
        ("vllm", "0.11.0", gemm_table("bfloat16", slower=9.0)[:20]),
        ("trtllm", "1.0.0", gemm_table("fp8", slower=0.5)),
    ):
        path = tmp_path / "h100_sxm" / "gemm" / backend / version
        path.mkdir(parents=True)
        table.to_parquet(path / "gemm_perf.parquet")
    return tmp_path


def product(m: float, kind: str = "bf16", n: float = 1024, k: float = 1024) -> dict[str, object]:
    sizes = {"problem.M": m, "problem.N": n, "problem.K": k}
    return {"kernel": "gemm", "config.format": kind, **sizes}


def ask(clock: OperatorTimer, *operators: dict[str, object]) -> pd.DataFrame:
    times = clock.times(pd.DataFrame(list(operators)))
    return pd.DataFrame(vars(times))


def test_tables_know_their_systems_and_engines(folder):
    tables = OperatorTables(folder)
    assert tables.systems == ["h100_sxm"]
    assert tables.backends("h100_sxm") == ["trtllm", "vllm"]
    assert tables.rows("moe", "h100_sxm", "vllm") is None


def test_operator_tables_newest_complete_version_counts(folder):
    clock = OperatorTimer(H100, OperatorTables(folder), "h100_sxm", "vllm")
    answer = ask(clock, product(16))
    expected = gemm_table("bfloat16").query("m == 16 and n == 1024 and k == 1024")["latency"]
    assert answer["ms"][0] == pytest.approx(expected.iloc[0], rel=1e-6)
    assert answer["source"][0] == "measured"


def test_operator_times_unmeasured_are_marked(folder):
    clock = OperatorTimer(H100, OperatorTables(folder), "h100_sxm", "vllm")
    answer = ask(
        clock,
        product(20, n=1100),
        product(16, "fp8"),
        product(16, "nvfp4"),
        {"kernel": "norm", "problem.rows": 8, "problem.columns": 64, "config.format": "bf16"},
    )
    assert list(answer["source"]) == ["interpolated", "predicted", "predicted", "roofline"]


def test_another_engines_measurements_of_the_format_stand_in(folder):
    vllm = OperatorTimer(H100, OperatorTables(folder), "h100_sxm", "vllm")
    trtllm = OperatorTimer(H100, OperatorTables(folder), "h100_sxm", "trtllm")
    operator = product(256, "fp8")
    assert ask(vllm, operator)["ms"][0] == ask(trtllm, operator)["ms"][0]


def test_power_of_an_older_version_is_learned_beside_newer_times(folder):
    path = folder / "h100_sxm" / "gemm" / "vllm" / "0.9.0"
    old = gemm_table("bfloat16", slower=2.0)
    watts = 100.0 + 20.0 * np.log2(old["m"])
    old.assign(power=watts, power_limit=700.0).to_parquet(path / "gemm_perf.parquet")
    clock = OperatorTimer(H100, OperatorTables(folder), "h100_sxm", "vllm")
    answer = ask(clock, product(16), product(100, n=1100), product(16, "fp8"))
    expected = gemm_table("bfloat16").query("m == 16 and n == 1024 and k == 1024")["latency"]
    assert answer["ms"][0] == pytest.approx(expected.iloc[0], rel=1e-6)
    assert answer["watts"][:2].to_numpy() == pytest.approx([180.0, 233.0], rel=0.2)
    assert np.isnan(answer["watts"][2])  # nobody's: times of another engine stand in


def test_impossible_rows_do_not_count(folder):
    path = folder / "h100_sxm" / "gemm" / "vllm" / "0.10.0"
    table = gemm_table("bfloat16")
    wrong = table["n"] == 1024
    table.assign(latency=table["latency"].mask(wrong, 1e-5)).to_parquet(path / "gemm_perf.parquet")
    clock = OperatorTimer(H100, OperatorTables(folder), "h100_sxm", "vllm")
    answer = ask(clock, product(4096))
    expected = table.query("m == 4096 and n == 1024 and k == 1024")["latency"]
    assert answer["ms"][0] == pytest.approx(expected.iloc[0], rel=0.3)
    assert answer["source"][0] != "measured"


def test_operator_times_fastest_implementation_counts(folder):
    path = folder / "h100_sxm" / "gemm" / "vllm" / "0.10.0"
    both = [gemm_table("bfloat16"), gemm_table("bfloat16", slower=0.8).assign(kernel_source="y")]
    pd.concat(both).to_parquet(path / "gemm_perf.parquet")
    clock = OperatorTimer(H100, OperatorTables(folder), "h100_sxm", "vllm")
    fastest = both[1].query("m == 16 and n == 1024 and k == 1024")["latency"]
    assert ask(clock, product(16))["ms"][0] == pytest.approx(fastest.iloc[0])


def experts_table(kind: str, ms: float, kernel: str = "x") -> pd.DataFrame:
    table = pd.DataFrame({"num_tokens": [2**i for i in range(12)]})
    shape = {"hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128}
    table = table.assign(**shape, moe_tp_size=1, moe_ep_size=1, distribution="power_law_1.2")
    return table.assign(
        moe_dtype=kind, kernel_source=kernel, latency=ms + table["num_tokens"] / 1e3
    )


def experts(kind: str, **more: str) -> dict[str, object]:
    sizes = {"tokens": 64, "hidden": 2048, "intermediate": 768, "top_k": 8, "experts": 128}
    problem = {f"problem.{name}": value for name, value in sizes.items()}
    config = {"config.format": kind, "config.tp": 1, "config.ep": 1}
    return {"kernel": "moe", **problem, **config, **{f"config.{k}": v for k, v in more.items()}}


def test_engines_choose_the_faster_of_experts_that_cost_the_same_work(tmp_path):
    path = tmp_path / "h100_sxm" / "moe" / "trtllm" / "1.0.0"
    path.mkdir(parents=True)
    tables = [
        experts_table("fp8", 3.0),
        experts_table("fp8_block", 1.0),
        experts_table("fp8_block", 0.5, "nongated"),
    ]
    pd.concat(tables).to_parquet(path / "moe_perf.parquet")
    clock = OperatorTimer(H100, OperatorTables(tmp_path), "h100_sxm", "trtllm")
    asked = pd.DataFrame([experts("fp8"), experts("fp8_block")])
    assert clock.times(asked).ms == pytest.approx([3.064, 1.064])
    assert clock.times(asked, fastest_format=True).ms == pytest.approx([1.064, 1.064], rel=1e-3)
    plain = pd.DataFrame([experts("fp8_block", experts="plain")])
    assert clock.times(plain).ms == pytest.approx([0.564])  # two matrices, not three


def test_operator_times_without_table_are_rooflines():
    answer = ask(OperatorTimer(H100, None, "h100_sxm"), product(4096, n=8192, k=8192))
    assert answer["source"][0] == "roofline"
    ideal = 2.0 * 4096 * 8192 * 8192 / (H100.specs["bf16_gflops"] * 1e6)
    assert ideal < answer["ms"][0] < 3 * ideal


def test_operator_times_unmeasured_system_borrows_efficiency(folder):
    tables = OperatorTables(folder)
    clock = OperatorTimer(H200, tables, "h200_sxm", "vllm", similar_systems=["h100_sxm"])
    here = ask(OperatorTimer(H100, tables, "h100_sxm", "vllm"), product(1, n=8192, k=8192))
    there = ask(clock, product(1, n=8192, k=8192))
    assert there["source"][0] == "predicted"
    assert there["ms"][0] < here["ms"][0]  # reads weights with more bandwidth


@pytest.mark.skipif(not default_folders(), reason="no measured operators")
def test_shapes_left_out_of_a_real_table():
    tables = OperatorTables(*default_folders())
    rows = tables.rows("gemm", "h100_sxm", "trtllm")
    rows = rows[rows["config.format"] == "fp8"]
    rows = rows[rows["problem.N"] <= 1024]
    site = rows.groupby(["problem.N", "problem.K"]).ngroup().to_numpy()
    out = np.isin(site, np.random.default_rng(0).permutation(site.max() + 1)[: site.max() // 5])
    clock = OperatorTimer(H100, _One(rows[~out]), "h100_sxm", "trtllm")
    times = clock.times(rows[out].drop(columns=["time_ms"]))
    error = np.abs(times.ms / rows["time_ms"][out] - 1.0)
    assert np.median(error) < 0.04


class _One(OperatorTables):
    """A table that is already in memory."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self._own = rows

    def backends(self, system: str) -> list[str]:
        return ["trtllm"]

    def rows(self, kernel: str, system: str, backend: str) -> pd.DataFrame | None:
        return self._own if kernel == "gemm" else None


def test_large_products_fill_their_tiles(tmp_path):
    """Tables hold sizes that fill tiles and the first of another, slow for its size."""
    table = gemm_table("bfloat16").query("m == 4096")
    full = [table.assign(m=m, latency=table["latency"] * m / 4096) for m in range(1024, 5120, 512)]
    begun = [part.assign(m=part["m"] + 1, latency=part["latency"] * 1.3) for part in full]
    path = tmp_path / "h100_sxm" / "gemm" / "vllm" / "0.10.0"
    path.mkdir(parents=True)
    pd.concat(full + begun).to_parquet(path / "gemm_perf.parquet")
    clock = OperatorTimer(H100, OperatorTables(tmp_path), "h100_sxm", "vllm")
    answer = ask(clock, product(2560), product(2561), product(2999), product(2945))
    exact, begins, between, other = answer["ms"]
    assert begins == pytest.approx(1.3 * exact, rel=1e-6)
    assert between == other  # the same tiles
    assert between == pytest.approx(exact * 3072 / 2560, rel=0.05)


def recurrent(kernel: str, op: str, batch: float) -> dict[str, object]:
    return {
        "kernel": kernel,
        "problem.op": op,
        "problem.phase": "generation",
        "problem.batch": batch,
        "problem.seq_len": 1.0,
        "problem.tokens": batch,
        "problem.d_conv": 4.0,
        "problem.num_k_heads": 16.0,
        "problem.head_k_dim": 128.0,
        "problem.num_v_heads": 32.0,
        "problem.head_v_dim": 128.0,
    }


def test_operator_times_state_update_borrows_from_other_kind(tmp_path):
    """The update was measured of the delta rule; a convolution of neither."""
    path = tmp_path / "h100_sxm" / "linear_attention" / "vllm" / "0.10.0"
    path.mkdir(parents=True)
    batches = [2**i for i in range(11)]
    pd.DataFrame(
        {
            "kernel_source": "fused_recurrent",
            "phase": "generation",
            "batch_size": batches,
            "seq_len": 1,
            "num_tokens": batches,
            "d_model": 2048,
            "d_conv": 4,
            "num_k_heads": 16,
            "head_k_dim": 128,
            "num_v_heads": 32,
            "head_v_dim": 128,
            "model_name": "x",
            "latency": [0.01 + 0.02 * batch for batch in batches],
        }
    ).to_parquet(path / "gdn_perf.parquet")
    clock = OperatorTimer(H100, OperatorTables(tmp_path), "h100_sxm", "vllm")
    own, borrowed, convolution = (
        ask(clock, recurrent(kernel, op, 64.0)).iloc[0]
        for kernel, op in (("gdn", "recurrence"), ("mamba2", "recurrence"), ("gdn", "convolution"))
    )
    assert (own["source"], own["ms"]) == ("measured", pytest.approx(0.01 + 0.02 * 64))
    assert (borrowed["source"], borrowed["ms"]) == ("predicted", pytest.approx(own["ms"]))
    assert convolution["source"] == "roofline"
