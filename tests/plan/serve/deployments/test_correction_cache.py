"""Corrections fitted once and kept: `plan/serve/deployments/correction_cache.py`."""

import pandas as pd
import pytest

from foretune.errors import ForetuneError, MissingExtra
from foretune.plan.serve.deployments import correction_cache
from foretune.plan.serve.deployments.correction_cache import PUBLISHED, fit_or_load_correction

ROW = {
    "backend": "vllm",
    "model_path": "meta-llama/Llama-3.1-8B",
    "system": "h100_sxm",
    "mode": "agg",
    "isl": 1024,
    "osl": 128,
    "gemm_quant_mode": "bf16",
    "moe_quant_mode": None,
    "batch_size": 8.0,
    "tp_size": 1.0,
    "silicon_ttft_ms": 60.0,
    "silicon_tpot_ms": 9.0,
}


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(correction_cache, "find_tables", lambda: None)
    rows = [
        ROW
        | {
            "batch_size": float(n),
            "tp_size": float(tp),
            "silicon_tpot_ms": (8 + n / 8) / tp,
            "silicon_ttft_ms": 50.0 + 5 * n,
        }
        for n in (1, 2, 4, 8, 16)
        for tp in (1, 2)
    ]
    path = tmp_path / "deployments.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def test_fit_or_load_correction_fits_once(table):
    said = []
    first = fit_or_load_correction(str(table), said.append)
    second = fit_or_load_correction(str(table), said.append)
    assert [line for line in said if line.startswith("fitting to 10 ")] == said
    assert len(said) == 1
    assert first.widths == second.widths


def test_fit_or_load_correction_other_table_is_fitted_again(table):
    said = []
    fit_or_load_correction(str(table), said.append)
    pd.read_csv(table).iloc[:-1].to_csv(table, index=False)
    fit_or_load_correction(str(table), said.append)
    assert [line.split()[2] for line in said] == ["10", "9"]


def test_fit_or_load_correction_missing_table_is_named():
    with pytest.raises(ForetuneError, match=r"absent\.csv"):
        fit_or_load_correction("absent.csv")


def test_fit_or_load_correction_published_needs_package(monkeypatch):
    monkeypatch.setattr(correction_cache, "package_folder", lambda: None)
    with pytest.raises(MissingExtra, match="llm"):
        fit_or_load_correction(PUBLISHED)
