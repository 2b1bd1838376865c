"""Tests that everything that names Foretune's version names the same one."""

import re
from pathlib import Path

from foretune.version import __version__

ROOT = Path(__file__).parents[1]


def test_version_is_that_of_citation():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, flags=re.M) == [__version__]


def test_version_is_newest_of_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(.+?)\]", changelog, flags=re.M)
    assert versions[0] == __version__
