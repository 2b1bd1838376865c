"""What the site has beside docs/: pages of other folders, the examples, the commands' reference.

Links are written so that they work in the repository. Here each is turned into the link that works
on the site; one that leads to a file that is no page stays as it is, and `--strict` refuses it.
"""

import ast
import json
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

from foretune.cli.app import app

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "benchmarks/gpu/README.md",
    "datasets/README.md",
)
ON_SITE = {"README.md": "index.md", "examples": "examples/index.md"}
"""Paths in the repository, and where they are on the site if not at the same place."""
LANGUAGES = {".py": "python", ".c": "c", ".sh": "bash"}
TABLE = (
    "<style>.output {overflow-x: auto; white-space: nowrap} .output p {white-space: normal} "
    ".output :is(td, th) {padding: 0 .6em}</style>"
)
"""How tables of notebooks look: wide ones scroll."""
TAGLINE = "Predicts how fast a kernel runs, measures what matters, and verifies every gain."
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link every page's footer to the repository, at the address in pyproject.toml.

    With MkDocs' own ``repo_url``, the theme would ask the hosting site for figures on every visit.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    source = settings["project"]["urls"]["Source"]
    icon = "material/source-repository"
    config.extra["social"] = [{"name": "Source code", "link": source, "icon": icon}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what does not lie in docs/."""
    for path in ("README.md", *OUTSIDE):
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, ON_SITE.get(path, path), content=text))
    files.append(File.generated(config, "examples/index.md", content=examples()))
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")):
        page = f"tutorials/{path.stem}.md"
        files.append(File.generated(config, page, content=notebook(path)))
    files.append(File.generated(config, "llms.txt", content=list_of_pages(files)))
    return files


def list_of_pages(files: Files) -> str:
    """Return the list of all pages for programs, see https://llmstxt.org: title, link, purpose."""
    lines = ["# Foretune", "", f"> {TAGLINE}", "", "## Pages", ""]
    for file in files.documentation_pages():
        title, _, rest = file.content_string.partition("\n")
        first = rest.strip().partition("\n\n")[0].replace("\n", " ")
        is_purpose = title.startswith("# ") and first.startswith("Afterwards")
        purpose = f": {first}" if is_purpose else ""
        lines.append(f"- [{title.removeprefix('# ')}]({file.url}){purpose}")
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return the page with links as the site needs them."""
    here = page.file.src_uri
    places = {there: path for path, there in ON_SITE.items()}
    path = places.get(here, here if here in OUTSIDE else f"docs/{here}")

    def rewrite(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[1]))
        anchor = link[2] or ""
        if target.startswith("examples/"):
            name = posixpath.basename(target)
            target, anchor = "examples", f"#{name.replace('.', '')}"
        target = ON_SITE.get(target, target.removeprefix("docs/"))
        return f"]({posixpath.relpath(target, posixpath.dirname(here) or '.')}{anchor})"

    return LINK.sub(rewrite, markdown)


def notebook(path: Path) -> str:
    """Return the page of a notebook, with the outputs that it was saved with."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += [shown(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + f"\n\n[The notebook]({path.name}) runs as it stands.\n"


def shown(output: dict[str, Any]) -> str:
    """Return an output of a cell: a picture, HTML or text."""
    data = {kind: "".join(value) for kind, value in output.get("data", {}).items()}
    if "image/png" in data:
        picture = f"data:image/png;base64,{data['image/png'].strip()}"
        return f'<img alt="the plot" style="max-width: 100%" src="{picture}">'
    if "text/html" in data:
        lines = (line.strip() for line in data["text/html"].splitlines())
        return f"{TABLE}<div class='output'>{' '.join(lines)}</div>"
    return f"```text\n{data.get('text/plain', ''.join(output.get('text', ())))}\n```"


def examples() -> str:
    """Return a page with every file of examples/."""
    parts = ["# Examples\n\nEach file runs as it stands, on a CPU.\n"]
    for file in sorted((ROOT / "examples").iterdir()):
        if file.suffix in LANGUAGES:
            code = file.read_text(encoding="utf-8")
            parts.append(f"## {file.name}\n\n````{LANGUAGES[file.suffix]}\n{code}````\n")
    parts.append("## kernels\n\nKernels to tune as `examples/kernels/FILE.py:NAME`.\n")
    for file in sorted((ROOT / "examples" / "kernels").glob("*.py")):
        summary = (ast.get_docstring(ast.parse(file.read_bytes())) or "").partition("\n")[0]
        parts.append(f"- `{file.name}`: {summary}")
    return "\n".join(parts) + "\n"


def commands() -> str:
    """Return the reference of the commands, made from the commands."""
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="foretune")
    text = get_docs_for_click(obj=command, ctx=context, name="foretune", title="Commands")
    text = re.sub(r"\x08\n((?: {2}.*\n)+)", r"```text\n\1```\n", text)  # kept as it was typed
    text = re.sub(r"\*\*Commands\*\*:\n\n(?:\* .*\n)+", "", text)  # cut short there
    text = text.replace("foretune collect kernel", "foretune collect")
    return re.sub(r"(?<=`: ).*$", lambda said: said[0].replace("<", "&lt;"), text, flags=re.M)
