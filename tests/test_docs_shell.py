"""Runs the shell lines of the pages in order, as a reader types them: hours, so in `.ci/extended`.

What runs always is that every line is either run or left out for a named reason.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/get-started.md",
    "docs/tune-anything.md",
    "docs/campaigns.md",
    "docs/tune.md",
    "docs/predictors.md",
    "docs/search.md",
    "docs/other-tools.md",
    "docs/triton.md",
    "docs/plan.md",
    "docs/judge.md",
    "docs/agents.md",
    "docs/gate.md",
    "docs/networks.md",
    "docs/fleet.md",
    "docs/doors.md",
    "docs/install.md",
)
"""In an order in which each page finds what earlier ones made."""

NOT_RUN = {
    "python3 -m venv": "the environment of the tests has what is installed",
    "source .venv": "the environment of the tests has what is installed",
    "pip install": "the environment of the tests has what is installed",
    ".venv/bin/pip install": "runs the tests",
    "python -m pip wheel": "tests/test_packaging.py builds wheels",
    "foretune mcp": "a server, which does not end",
    "foretune gate": "tests/tune/gate compares two revisions",
    "foretune judge my_task/": "tests/tune/test_receipt.py makes a folder and a key",
    "mlflow ui": "a server, which does not end",
    "ray start": "a cluster of the reader's machines",
    "#SBATCH": "a SLURM job",
    "--device cuda:0": "needs a GPU",
    "FORETUNE_FLASHINFER=4": "needs vLLM and a GPU",
    "foretune import traces/": "reads the reader's traces",
    "foretune import h200_sxm": "reads a table of aiconfigurator",
    "all-reduce": "reads a table of aiconfigurator",
    "theirs.parquet": "reads the reader's table",
    "runs.csv": "reads the reader's table",
    "foretune predict p ": "the predictor of the reader's table",
    "serve.py": "the reader's server",
    "vllm serve MODEL": "the reader's server",
    "calls.jsonl": "needs the reader's server",
    "mykernels": "needs the reader's kernel",
    "--kernel add": "needs the reader's kernel",
    "foretune store add": "needs the reader's kernel",
    "model.pt2": "tests/collect/test_networks.py exports and measures networks",
    "--objective energy": "needs a power meter",
    "server.log": "needs the reader's engine: tests/cli/test_plan_steps.py learns from a log",
    "foretune predict steps": "needs the reader's engine: tests/cli/test_plan_steps.py predicts",
    "store --nearest": "needs the reader's engine: tests/tune/doors/test_tuned_files.py copies",
    "my-model": "needs the reader's model and engine: tests/plan/prove/engines has real ones",
}
"""Part of a line -> why it is not run."""

LIMIT_S = 1800
IN_ORDER = bool(os.environ.get("FORETUNE_EXTENDED")) and "PYTEST_XDIST_WORKER" not in os.environ


def shell_lines(page: str) -> list[str]:
    """Return the commands of a page's shell blocks; continued lines are one."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = []
    for block in re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.S | re.M):
        if "#SBATCH" in block:
            lines.append("#SBATCH")
            continue
        joined = block.replace("\\\n", " ").splitlines()
        lines += [line for line in joined if line.strip() and not line.startswith("#")]
    return lines


def reason_not_to_run(line: str) -> str:
    """Return why a line is not run; empty if it is."""
    return next((reason for part, reason in NOT_RUN.items() if part in line), "")


def files_of(page: str) -> dict[str, str]:
    """Return the files that a page shows: name -> content. Their first line is their name."""
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = re.findall(r"^```\w+\n((?:# |/\* )([\w.]+)(?: \*/)?\n.*?)^```", text, re.S | re.M)
    return {name: content for content, name in shown if Path(name).suffix}


def test_pages_with_shell_lines_are_listed():
    pages = [Path("README.md"), *sorted(path.relative_to(ROOT) for path in ROOT.glob("docs/*.md"))]
    with_lines = {str(page) for page in pages if shell_lines(str(page))}
    assert with_lines == set(PAGES)


def test_every_reason_is_of_some_line():
    lines = [line for page in PAGES for line in shell_lines(page)]
    assert [part for part in NOT_RUN if not any(part in line for line in lines)] == []


def test_most_lines_are_run():
    lines = [line for page in PAGES for line in shell_lines(page)]
    run = [line for line in lines if not reason_not_to_run(line)]
    assert len(run) >= 25


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder that all pages share, as a reader's would be; it sees the examples."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.mark.skipif(not IN_ORDER, reason="takes an hour: FORETUNE_EXTENDED=1 runs it, without -n")
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("page", PAGES)
def test_lines_of_page_run(place, page):
    for name, content in files_of(page).items():
        (place / name).write_text(content, encoding="utf-8")
    lines = [line for line in shell_lines(page) if not reason_not_to_run(line)]

    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FORETUNE_STORE": str(place / "tuned.db"),
        "FORETUNE_CACHE": str(place / "cache"),
    }
    script = "\n".join(["set -euo pipefail", *lines])
    run = subprocess.run(
        ["bash", "-x", "-c", script],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
