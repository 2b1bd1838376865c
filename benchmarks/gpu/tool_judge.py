"""Item of `tools.py`: `foretune judge` on solutions in Triton, in each form of a task.

The tasks are those of tests/tasks: a gated silu, whose candidates are replaced by a right and by a
wrong solution. Without a GPU, Triton's interpreter runs them.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from smoke_rows import REAL, Run

ROOT = Path(__file__).resolve().parents[2]
TASKS = ROOT / "tests" / "tasks"
TASK = "gated_silu"
DEVICE = "cuda" if REAL else "cpu"
TIMED = ("two files", "right")
"""The form and solution that is also timed on a GPU, with one problem."""
AT_ONCE = 6 if REAL else 2
"""Judges that run at the same time."""
LIMIT_S = 90.0

KERNEL = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def rows_of_gated_silu(gate, x, y, width, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    at = tl.program_id(0) * width + columns
    inside = columns < width
    g = tl.load(gate + at, mask=inside, other=0.0)
    gated = g / (1.0 + tl.exp(-g))
    tl.store(y + at, gated * tl.load(x + at, mask=inside, other=0.0), mask=inside)


def compute(gate, x, y):
    rows, width = gate.shape
    block = triton.next_power_of_2(width)
    rows_of_gated_silu[(rows,)](gate, x, y, width, BLOCK=block)
    return y
"""
FUNCTION = """

def gated_silu(gate, x):
    return compute(gate, x, torch.empty_like(gate))
"""
MODEL = """

class ModelNew(nn.Module):
    def forward(self, gate, x):
        return compute(gate, x, torch.empty_like(gate))
"""
SOLUTION = """

def run(gate, x, result):
    compute(gate, x, result)
"""
ON_DEVICE = """

_inputs_on_host = inputs


def inputs(rows, seed):
    return tuple(tensor.to({device!r}) for tensor in _inputs_on_host(rows, seed))
"""
WRONG = ("gate + at, mask=inside", "gate + at, mask=columns < width - 1")
"""What makes the kernel wrong: it takes the last gate of each row for 0."""


def write_functions(folder: Path, kernel: str) -> None:
    """Write the task as two files."""
    reference = (TASKS / "functions" / TASK / "reference.py").read_text()
    (folder / "reference.py").write_text(reference + ON_DEVICE.format(device=DEVICE))
    (folder / "candidate.py").write_text(kernel + FUNCTION)


def write_models(folder: Path, kernel: str) -> None:
    """Write the task as models."""
    shutil.copy(TASKS / "models" / TASK / "task.py", folder)
    (folder / "new.py").write_text(kernel + MODEL)


def write_trace(folder: Path, kernel: str) -> None:
    """Write the task as a FlashInfer Trace."""
    for part in ("definitions", "workloads"):
        (file,) = (TASKS / "traces" / part / "rows").glob(f"{TASK}.json*")
        (folder / part).mkdir()
        shutil.copy(file, folder / part)
    spec = {
        "language": "triton",
        "target_hardware": [DEVICE],
        "entry_point": "main.py::run",
        "dependencies": [],
        "destination_passing_style": True,
    }
    solution = {
        "name": "in_triton",
        "definition": TASK,
        "author": "foretune",
        "spec": spec,
        "sources": [{"path": "main.py", "content": kernel + SOLUTION}],
    }
    (folder / "solutions").mkdir()
    (folder / "solutions" / "in_triton.json").write_text(json.dumps(solution))


FORMS: dict[str, Callable[[Path, str], None]] = {
    "two files": write_functions,
    "models": write_models,
    "FlashInfer Trace": write_trace,
}


def judge(run: Run) -> None:
    """Judge a right and a wrong solution in each form."""
    solutions = {"right": KERNEL, "wrong": KERNEL.replace(*WRONG)}
    cases = [(form, name) for form in FORMS for name in solutions]
    folders = []
    for number, (form, name) in enumerate(cases):
        folder = run.folder / f"task-{number}"
        folder.mkdir()
        FORMS[form](folder, solutions[name])
        folders.append(folder)
    # One is also timed, which takes longer than all checks.
    is_timed = [REAL and case == TIMED for case in cases]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = list(pool.map(verdict_of, folders, is_timed))
    for (form, name), verdict in zip(cases, verdicts, strict=True):
        is_right = bool(verdict["refused"]) == (name == "wrong")
        run.check(f"{form}, {name}", is_right, verdict["refused"] or verdict["headline"])


def verdict_of(folder: Path, is_timed: bool) -> dict[str, str]:
    """Return the verdict of a judge in a process of its own."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    variables = {"PYTHONPATH": path} | ({} if REAL else {"TRITON_INTERPRET": "1"})
    timed = ["timed"] if is_timed else []
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, str(folder), *timed],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the judge failed: {done.stderr[-900:]}")
    verdict: dict[str, str] = json.loads(done.stdout)
    return verdict


def print_verdict(folder: str, timed: str = "") -> None:
    """Judge the task in a folder as ``foretune judge`` does, and print why it is refused."""
    from foretune import local_device
    from foretune.tune.judge import judge as judge_functions
    from foretune.tune.tasks.folder import read_task

    device = local_device("gpu" if REAL else "cpu", measure=False)
    with read_task(Path(folder), device=device) as task:
        verdict = judge_functions(
            task.candidate,
            task.reference,
            task.problems[:1] if timed else task.problems,
            inputs=task.inputs,
            session_s=0.1,
            device=device,
            check_only=not timed,
        )
    headline = verdict.headline if timed else "correct; not timed"
    print(json.dumps({"refused": verdict.refused, "headline": headline}))


if __name__ == "__main__":
    print_verdict(*sys.argv[1:])
