"""Folders of measured operators."""

import pytest

from foretune.plan.cost.tables import OperatorTables


def test_versions_of_engine_are_in_order(tmp_path):
    for version in ("0.9.2", "0.11.0", "0.10.1"):
        folder = tmp_path / "h100_sxm" / "gemm" / "vllm" / version
        folder.mkdir(parents=True)
        (folder / "gemm_perf.parquet").touch()
    tables = OperatorTables(tmp_path)
    assert tables.versions("h100_sxm", "vllm") == ["0.9.2", "0.10.1", "0.11.0"]
    assert tables.versions("h100_sxm", "sglang") == []


@pytest.mark.shared_data
def test_tables_with_a_file_per_operation(shared_data):
    tables = OperatorTables(shared_data / "llm")
    assert "h100_sxm" in tables.systems
    assert tables.backends("h100_sxm") == ["sglang", "trtllm", "vllm"]
    rows = tables.rows("attention_prefill", "h100_sxm", "vllm")
    assert rows is not None
    assert rows["device"].nunique() == 1
    assert tables.rows("attention_prefill", "h100_sxm", "another") is None
