"""Published deployments, which all ran, have legal layouts and fit memory."""

import pandas as pd
import pytest

from foretune.plan import Formats, Layout, ModelDescription, Workload, describe_model, find_system
from foretune.plan.cost.memory import max_requests
from foretune.plan.describe.layout import illegal_because


def formats_of(row: pd.Series, model: ModelDescription) -> Formats:
    if row["precision"] == "fp4":
        four_bits = "mxfp4" if "gpt-oss" in row["model_path"] else "nvfp4"
        return Formats("bf16" if model.is_moe else "nvfp4", kv="fp8", moe=four_bits)
    if row["precision"] == "fp8":
        blocks = "fp8_block" in (row["moe_quant_mode"], model.weight_format)
        return Formats("fp8_block" if blocks else "fp8", kv="fp8")
    return Formats()


@pytest.mark.shared_data
def test_published_deployments_are_legal_and_fit_memory(shared_data):
    pytest.importorskip("aiconfigurator_core", reason="some of the models are described there only")
    rows = pd.read_parquet(shared_data / "llm" / "e2e_silicon.parquet")
    rows = rows[rows["mode"] == "agg"]
    degrees = ["tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"]
    rows[degrees] = rows[degrees].fillna(0).astype(int)
    texts = ["precision", "moe_quant_mode"]
    rows[texts] = rows[texts].astype(object).fillna("")
    impossible = set()
    resident = 0
    for _, row in rows.iterrows():
        model = describe_model(row["model_path"])
        layout = Layout.from_labels(model, *(row[d] for d in degrees))
        formats = formats_of(row, model)
        system = find_system(row["system"])
        if reason := illegal_because(model, layout, formats):
            impossible.add((layout.tp, reason))
            continue
        concurrency = row["silicon_concurrency"]
        if pd.isna(concurrency):
            concurrency = row["batch_size"] * layout.dp
        workload = Workload(int(row["isl"]), int(row["osl"]))
        most = max_requests(model, layout, formats, workload, system.memory_gib)
        assert most > 0, row
        resident += concurrency <= most
    # Labels that are no degree of anything, of one engine on one system.
    assert {tp for tp, _ in impossible} <= {20, 36, 40, 48}
    # The others let requests wait.
    assert resident >= 0.96 * len(rows)
