"""Tests the documentation site, as a browser shows it on a desktop and on a phone.

``mkdocs build --site-dir site && FORETUNE_SITE=site pytest tests/test_site.py``
"""

import os
from pathlib import Path

import pytest

SITE = Path(os.environ.get("FORETUNE_SITE", "no site"))

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not SITE.is_dir(), reason="needs the built site: set FORETUNE_SITE"),
]
BATCH = 12
"""Pages that are shown at once."""


def pages():
    return sorted(p for p in SITE.resolve().rglob("index.html") if "decisions" not in p.parts)


@pytest.mark.parametrize("width", [1280, 500])
def test_site_pages_fit_and_have_pictures(browser, width):
    every = pages()
    assert len(every) > 25
    for start in range(0, len(every), BATCH):
        batch = every[start : start + BATCH]
        for page, found in zip(batch, browser.looked_at(batch, width), strict=True):
            assert found["width"] <= width, page
            assert not found["missing"], page
            assert found["heading"], page


@pytest.mark.parametrize("name", ["", "get-started", "errors", "reference/api"])
@pytest.mark.parametrize("width", [1280, 500])
def test_site_has_light_and_dark_colors(browser, name, width):
    page = SITE.resolve() / name / "index.html"
    light, dark = (browser.screenshot(page, width, 1000, dark=dark) for dark in (False, True))
    for image in (light, dark):
        assert image.std() > 15  # something is written there
    assert light.mean() > 128 > dark.mean()
