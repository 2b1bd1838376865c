"""The skill file says what the commands say."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_skill_file_is_that_of_the_commands(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    spec = importlib.util.spec_from_file_location("foretune_docs_skill", DOCS / "skill.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.FILE.read_text(encoding="utf-8") == module.skill(), "run: python docs/skill.py"
