"""Measured tables of language-model operators: every row is imported, or counted."""

import json

import pandas as pd
import pytest

from foretune.datasets import import_runs
from foretune.device import known_devices


@pytest.mark.shared_data
def test_import_runs_reads_measured_tables(shared_data, survives):
    manifest = json.loads((shared_data / "llm" / "manifest.json").read_text())
    rows = {f["file"]: f["rows"] for f in manifest["files"]}
    for name, count in rows.items():
        if name.startswith(
            ("e2e", "gpu_specs", "power", "gemm", "moe", "generation_a", "context_a", "vidur")
        ):
            continue  # no operators, or large: the next tests
        done = import_runs(shared_data / "llm" / name, "aiconfigurator")
        survives(done)
        parts = {"wideep_deepep_ll.parquet": 2}
        expected = count * parts.get(name, 2 if "normal" in name else 1)
        assert len(done.runs) + sum(done.rejected.values()) == expected, name
        assert set(done.runs["device"]) <= set(known_devices()), name


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["gemm", "context_attention", "generation_attention", "moe"])
def test_import_runs_reads_large_tables(shared_data, tmp_path, name):
    table = pd.read_parquet(shared_data / "llm" / f"{name}.parquet").sample(20_000, random_state=0)
    table.to_parquet(tmp_path / f"{name}.parquet")
    done = import_runs(tmp_path / f"{name}.parquet", "aiconfigurator")
    assert (len(done.runs), done.rejected) == (20_000, {})
    problem = [c for c in done.runs if c.startswith("problem.")]
    assert not done.runs[problem].isna().any().any()


@pytest.mark.shared_data
def test_import_runs_reads_power_without_times(shared_data):
    for path in sorted((shared_data / "llm").glob("power_*.parquet")):
        done = import_runs(path, "aiconfigurator")
        assert done.rejected == {}
        assert done.runs["power_w"].between(50, 800).all()
        assert done.runs["time_ms"].isna().all()
