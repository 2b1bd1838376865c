"""Plans by rooflines alone, so that every machine plans the same."""

import pytest

from foretune.plan.cost import tables as operator_tables


@pytest.fixture(autouse=True)
def rooflines(monkeypatch, tmp_path):
    """No tables, and an empty working directory."""
    monkeypatch.setattr(operator_tables, "default_folders", list)
    monkeypatch.chdir(tmp_path)
