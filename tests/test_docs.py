"""Tests that links and paths in pages lead somewhere, and that pages stay short."""

import re
from pathlib import Path

import pytest

import foretune

ROOT = Path(__file__).parents[1]
PAGES = [
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "benchmarks/**/*.md",
        "datasets/*.md",
        "examples/*.md",
        "tests/toy/*.md",
    )
    for path in sorted(ROOT.glob(pattern))
    if path.name != "CHANGELOG.md"  # speaks of what was
]
PACKAGES = ("collect", "datasets", "features", "models", "plan", "search", "tune")
LAST_IN_COMMIT = re.compile(r"`benchmarks/\w+\.py[^`]*`, last\s+in\s+commit\s+[0-9a-f]{8}\b")
"""How a page names a script that is gone: the tables it printed stay."""
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_page_links_lead_to_files(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", text)
    assert not [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_page_code_blocks_are_closed(page):
    fences = re.findall(r".*```.*", page.read_text(encoding="utf-8"))
    assert not [line for line in fences if not re.fullmatch(r" *```[\w-]*", line)]
    assert len(fences) % 2 == 0


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_page_paths_of_code_exist(page):
    text = page.read_text(encoding="utf-8")
    folders = "src|datasets|collect|features|models|search|tune|plan|benchmarks|tests|examples"
    text = LAST_IN_COMMIT.sub("", text)
    paths = re.findall(rf"\b((?:{folders})/[\w/]*\w+\.(?:py|csv))\b", text)
    assert not [path for path in paths if not (ROOT / path).exists()]


SAYS_HOW_TO_INSTALL = [
    *PAGES,
    *(p for p in (ROOT / "examples").rglob("*.*") if p.suffix != ".pyc"),
    *(p for folder in ("src/foretune", *PACKAGES) for p in (ROOT / folder).rglob("*.py")),
]


def test_texts_install_from_checkout_only():
    wrong = re.compile(r"pip install [^\n`&]*\bforetune(\[|\b)(?!.*whl)")
    found = [named(p) for p in SAYS_HOW_TO_INSTALL if wrong.search(p.read_text(encoding="utf-8"))]
    assert found == []


def test_readme_is_short_and_has_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 880
    marks = [line for line in text.splitlines() if line in ("# the main job", "# the tests")]
    assert marks == ["# the main job", "# the tests"]


def test_reference_lists_every_public_name():
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: foretune\.(\w+)$", page, re.M)
    assert sorted(listed) == sorted(set(foretune.__all__) - {"__version__"})


def test_architecture_is_short():
    words = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split()
    assert len(words) <= 1500


@pytest.mark.parametrize("page", DECISIONS, ids=named)
def test_decision_is_short_and_listed(page):
    text = page.read_text(encoding="utf-8")
    if page.name != "README.md":
        sentences = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
        assert len(sentences.split()) <= 600
        assert f"({page.name})" in (page.parent / "README.md").read_text(encoding="utf-8")


GUIDES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", GUIDES, ids=named)
def test_guide_opens_with_what_its_reader_can_do(page):
    assert page.read_text(encoding="utf-8").split("\n\n")[1].startswith("Afterwards you")


def test_predictors_page_report_is_of_full_validation():
    page = (ROOT / "docs" / "predictors.md").read_text(encoding="utf-8")
    command = page[: page.index("random: ")].rpartition("foretune train")[2]
    assert "--validate full" in command.partition("\n")[0]


def test_readme_opening_and_words_are_short():
    first = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Where next")[0]
    assert len(first.split()) <= 580
    words = (ROOT / "docs" / "words.md").read_text(encoding="utf-8")
    assert 0 < len(re.findall(r"^\| (?!word |-)", words, flags=re.M)) <= 40


def test_install_page_has_size_of_every_extra():
    table = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").partition("## Extras")[2]
    sizes = re.findall(r"^\|.*\| ([^|]+) \|$", table, flags=re.M)[1:]
    assert len(sizes) > 10
    assert not [size for size in sizes if not re.match(r"\d|as |---", size)]


def test_toy_page_lists_every_helper():
    toy = ROOT / "tests" / "toy"
    page = (toy / "README.md").read_text(encoding="utf-8")
    helpers = [path.name for path in toy.glob("*.py")]
    assert len(helpers) > 20
    assert [name for name in helpers if f"`{name}`" not in page] == []
