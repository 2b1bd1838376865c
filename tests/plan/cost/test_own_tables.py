"""The user's own operators count before those of engines, where they were measured."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.datasets import RunLog
from foretune.device import Device, find_device
from foretune.errors import RunTableError, UsageError
from foretune.measurement import Measurement, Status
from foretune.plan import Formats, Layout, System
from foretune.plan.cost import tables as operator_tables
from foretune.plan.cost.operator import Part
from foretune.plan.cost.steps import Step, StepTimerFactory
from foretune.plan.cost.tables import (
    MAX_COVERED_DISTANCE,
    OPERATORS_FILE,
    OperatorTables,
    find_tables,
    merge_tables,
)
from foretune.plan.cost.times import OperatorTimer
from foretune.problem import Problem
from foretune.space import Configuration

H100 = find_device("NVIDIA H100 80GB HBM3")
MINE = Device("My GPU", "gpu", "sm_90", {"bf16_gflops": 1e5, "memory_gbps": 500.0})
SIZES = (1024, 2048, 4096)


def engine_rows(slower: float = 1.0) -> pd.DataFrame:
    rows = [(m, n, k) for m in (1, 64, 4096) for n in SIZES for k in SIZES]
    table = pd.DataFrame(rows, columns=["m", "n", "k"])
    work = 2.0 * table["m"] * table["n"] * table["k"] / 5e11 + table["n"] * table["k"] / 2e9
    return table.assign(gemm_dtype="bfloat16", kernel_source="x", latency=slower * (0.004 + work))


@pytest.fixture
def engines(tmp_path: Path) -> Path:
    path = tmp_path / "engines" / "h100_sxm" / "gemm" / "vllm" / "1.0.0"
    path.mkdir(parents=True)
    engine_rows().to_parquet(path / "gemm_perf.parquet")
    return tmp_path / "engines"


def write_own(folder: Path, device: Device, ms: float = 0.7, status: Status = Status.OK) -> Path:
    """Measure decode products only: twelve of one row, all far from 4096."""
    with RunLog(folder / OPERATORS_FILE, device) as log:
        for n in (*SIZES, 8192):
            for k in SIZES:
                ok = status is Status.OK
                problem = Problem(M=1, N=n, K=k)
                config = Configuration(format="bf16")
                found = Measurement("gemm", problem, config, device.name, status)
                time = {"time_ms": ms} if ok else {"error": "no"}
                log.append(Measurement(**{**vars(found), **time}))
    return folder


def product(m: float, n: float = 2048, k: float = 2048) -> dict[str, object]:
    sizes = {"problem.M": m, "problem.N": n, "problem.K": k}
    return {"kernel": "gemm", "config.format": "bf16", **sizes}


def ask(clock: OperatorTimer, *operators: dict[str, object]) -> pd.DataFrame:
    return pd.DataFrame(vars(clock.times(pd.DataFrame(list(operators)))))


def test_own_measurements_come_first_and_engines_answer_the_rest(tmp_path, engines):
    own = write_own(tmp_path / "own", H100)
    both = OperatorTimer(H100, OperatorTables(own, engines), "h100_sxm", "vllm")
    package = OperatorTimer(H100, OperatorTables(engines), "h100_sxm", "vllm")
    answer = ask(both, product(1), product(4096))
    theirs = ask(package, product(1), product(4096))
    assert answer["ms"][0] == pytest.approx(0.7)
    assert theirs["ms"][0] < 0.1
    assert answer["ms"][1] == pytest.approx(theirs["ms"][1])
    assert list(answer["source"]) == ["measured", "measured"]


def test_own_measurements_after_engines_fill_gaps_only(tmp_path, engines):
    own = write_own(tmp_path / "own", H100)
    clock = OperatorTimer(H100, OperatorTables(engines, own), "h100_sxm", "vllm")
    answer = ask(clock, product(1), product(1, n=8192))
    assert answer["ms"][0] < 0.1
    assert answer["ms"][1] == pytest.approx(0.7)


def test_own_measurements_serve_every_engine_on_their_device_only(tmp_path, engines):
    tables = OperatorTables(write_own(tmp_path / "own", H100), engines)
    assert tables.backends("h100_sxm") == ["sglang", "trtllm", "vllm"]
    assert tables.backends("a100_sxm") == []
    assert len(tables.rows("gemm", "h100_sxm", "sglang")) == 12
    assert tables.rows("moe", "h100_sxm", "sglang") is None
    assert tables.rows("gemm", "a100_sxm", "vllm") is None


def test_own_tables_unknown_device_borrows_missing_operators(tmp_path, engines, small):
    tables = OperatorTables(write_own(tmp_path / "own", MINE), engines)
    assert tables.systems == ["h100_sxm"]
    clock = OperatorTimer(MINE, tables, MINE.name, "vllm", ["h100_sxm"])
    answer = ask(clock, product(1), product(1) | {"config.format": "fp8"})
    assert answer["ms"][0] == pytest.approx(0.7)
    assert list(answer["source"]) == ["measured", "predicted"]
    step = Step(small, Layout(), Formats(), Part(1, 1, 100, "decode"))
    system = System.from_device(MINE)
    assert StepTimerFactory(tables)(system, "vllm").times([step])["total"][0] > 0


def test_own_tables_interrupted_collection_is_read(tmp_path):
    log = RunLog(tmp_path / OPERATORS_FILE, MINE)
    problem = Problem(M=1, N=8, K=8)
    config = Configuration(format="bf16")
    log.append(Measurement("gemm", problem, config, MINE.name, Status.OK, 1.0))
    tables = OperatorTables(tmp_path)
    assert len(tables.rows("gemm", MINE.name, "")) == 1
    log.close()


def test_sizes_of_other_kernels_in_the_table_do_not_disturb(tmp_path):
    own = write_own(tmp_path, MINE)
    with RunLog(own / OPERATORS_FILE, MINE) as log:
        for kv_len in range(1, 13):
            shape = {"heads": 4, "kv_heads": 2, "head_dim": 64, "window": 0}
            problem = Problem(batch=3, kv_len=kv_len, **shape)
            config = Configuration(format="bf16", kv_format="bf16")
            log.append(Measurement("attention_decode", problem, config, MINE.name, Status.OK, 5.0))
    tables = OperatorTables(own)
    assert "problem.batch" not in tables.rows("gemm", MINE.name, "vllm")
    clock = OperatorTimer(MINE, tables, MINE.name, "vllm")
    attention = {f"problem.{name}": value for name, value in problem.items()}
    attention |= {"kernel": "attention_decode", "config.format": "bf16"}
    answer = ask(clock, product(1), attention | {"config.kv_format": "bf16"})
    assert list(answer["ms"]) == pytest.approx([0.7, 5.0])


def test_own_tables_folder_of_failures_is_refused(tmp_path):
    own = write_own(tmp_path / "own", MINE, status=Status.RUNTIME_ERROR)
    with pytest.raises(RunTableError, match="no successful measurement"):
        OperatorTables(own).backends("h100_sxm")


def test_find_tables_folders(tmp_path, engines, monkeypatch):
    own = write_own(tmp_path / "own", MINE)
    monkeypatch.setattr(operator_tables, "default_folders", lambda: [engines])
    assert find_tables().folders == (engines,)
    assert find_tables(own).folders == (own, engines)
    assert find_tables(engines).folders == (engines,)
    with pytest.raises(UsageError, match="no measured operators in"):
        find_tables(tmp_path / "nowhere")
    monkeypatch.setattr(operator_tables, "default_folders", list)
    assert find_tables() is None
    assert find_tables(own).folders == (own,)


def test_find_tables_without_folder_finds_none():
    tables = OperatorTables()
    assert tables.systems == []
    assert tables.backends("h100_sxm") == []
    assert tables.rows("gemm", "h100_sxm", "vllm") is None


places = st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=12)


def table(where: list[tuple[int, int, int]], kind: str, ms: float) -> pd.DataFrame:
    sizes = 2.0 ** np.array(where)
    columns = {f"problem.{n}": sizes[:, i] for i, n in enumerate("MNK")}
    return pd.DataFrame({**columns, "config.format": kind, "time_ms": ms})


@given(places, places)
def test_own_tables_row_counts_unless_earlier_one_is_near(first, second):
    kept = merge_tables("gemm", [table(first, "bf16", 1.0), table(second, "bf16", 2.0)])
    far = [
        p
        for p in second
        if min(np.linalg.norm(np.subtract(p, q)) for q in first) >= MAX_COVERED_DISTANCE
    ]
    assert len(kept) == len(first) + len(far)
    others = merge_tables("gemm", [table(first, "bf16", 1.0), table(second, "fp8", 2.0)])
    assert len(others) == len(first) + len(second)
