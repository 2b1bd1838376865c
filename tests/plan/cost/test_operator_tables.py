"""Folders of measured operators."""

import pytest

from foretune.plan.cost.tables import OperatorTables


@pytest.mark.shared_data
def test_tables_with_a_file_per_operation(shared_data):
    tables = OperatorTables(shared_data / "llm")
    assert "h100_sxm" in tables.systems
    assert tables.backends("h100_sxm") == ["sglang", "trtllm", "vllm"]
    rows = tables.rows("attention_prefill", "h100_sxm", "vllm")
    assert rows is not None
    assert rows["device"].nunique() == 1
    assert tables.rows("attention_prefill", "h100_sxm", "another") is None
