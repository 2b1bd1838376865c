"""The commands that texts name can be run: their scripts and options exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
INDEX = BENCHMARKS / "README.md"
RESULTS = sorted((ROOT / "docs" / "benchmarks").glob("*.md"))
SCRIPTS = [p for p in BENCHMARKS.rglob("*.py") if "__main__" in p.read_text(encoding="utf-8")]
PAGES = [*BENCHMARKS.rglob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"]
COMMAND = re.compile(
    r"(?:python |\b(?=benchmarks/))(benchmarks/)?([\w/]+\.py)"
    r"((?:(?!python |benchmarks/|\n\n)[^`])*)"  # its arguments
)
LAST_IN_COMMIT = re.compile(r"`benchmarks/\w+\.py[^`]*`, last\s+in\s+commit\s+[0-9a-f]{8}\b")
"""How a page names a script that is gone: the tables it printed stay."""
OPTION = re.compile(r"--[a-z][\w-]*")


def code_of(script: Path) -> str:
    """Return the code of a script and of what it imports from its folder."""
    code = script.read_text(encoding="utf-8")
    names = re.findall(r"^from (\w+) import", code, re.M)
    beside = [path for name in names if (path := script.with_name(f"{name}.py")).exists()]
    return "".join([code, *(path.read_text(encoding="utf-8") for path in beside)])


@pytest.mark.parametrize("text", sorted([*PAGES, *SCRIPTS]), ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_can_be_run(text):
    content = text.read_text(encoding="utf-8")
    if text.suffix == ".py":
        content = content.split('"""')[1]
    content = LAST_IN_COMMIT.sub("", content)
    wrong = []
    for from_root, name, arguments in COMMAND.findall(content):
        if not from_root and BENCHMARKS not in text.parents:
            continue  # a user's script
        script = BENCHMARKS / name
        code = code_of(script) if script.exists() else ""
        options = [o for o in OPTION.findall(arguments) if f'"{o}"' not in code]
        wrong += [f"{name} {option}" for option in options] if code else [name]
    assert wrong == []


def test_index_has_every_script():
    named = set(re.findall(r"`(\w+\.py)`", INDEX.read_text(encoding="utf-8")))
    scripts = {path.name for path in SCRIPTS if path.parent == BENCHMARKS}

    assert named == scripts


@pytest.mark.parametrize("page", RESULTS, ids=lambda p: p.stem)
def test_options_named_without_a_command_exist(page):
    cli = (ROOT / "src" / "foretune" / "cli").glob("*.py")
    code_of_foretune = "".join(path.read_text(encoding="utf-8") for path in cli)
    unknown = []
    for section in page.read_text(encoding="utf-8").split("\n## "):
        scripts = [BENCHMARKS / name for name in re.findall(r"benchmarks/([\w/]+\.py)", section)]
        code = "".join(code_of(script) for script in scripts)
        options = OPTION.findall(" ".join(re.findall(r"`(--[^`]*)`", section)))
        not_here = [option for option in options if f'"{option}"' not in code]
        unknown += [option for option in not_here if option not in code_of_foretune]
    assert unknown == []
