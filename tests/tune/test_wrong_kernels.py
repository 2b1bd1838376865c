"""The gallery of wrong kernels through every door of the judge: none is accepted, honest ones are.

The doors are `judge` with functions of Python, ``foretune judge`` with two files, with a folder of
models (KernelBench's form) and with a folder of FlashInfer Trace, and the tool of the Model Context
Protocol. All but the last test fork the judge's workers, which start at once.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import wrong_kernels as gallery
from judged import ForkedProcess
from wrong_functions import WRONG as WRONG_FUNCTIONS

torch = pytest.importorskip("torch")
if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)

from foretune.cli import main
from foretune.errors import UsageError
from foretune.problem import Problem
from foretune.tune import judge as module
from foretune.tune.tasks.folder import read_task

pytestmark = pytest.mark.filterwarnings("ignore")  # of special values
PROBLEMS = [Problem(rows=48), Problem(rows=33)]
LIMIT_S = 20.0


@pytest.fixture(autouse=True)
def _forked_with_few_rounds(monkeypatch):
    monkeypatch.setattr(module, "WorkerProcess", ForkedProcess)
    monkeypatch.setattr(module, "LOOKS", {1: 1.0})
    monkeypatch.setattr(module, "MIN_ROUNDS", 3)
    monkeypatch.setattr(module, "OUTPUT_CHECK_SHARE", 1.0)
    monkeypatch.setattr(module, "CLOCK_NOISE_MS", 5.0)


def inputs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(*shape, generator=generator) for shape in ((rows, 32), (32, 32)))


def slow(x, w):
    return torch.stack([torch.relu(row @ w) for row in x])


def from_text(text):
    """Return a function that runs a text in the process that calls it first."""
    names = {}

    def fast(x, w):
        if not names:
            exec(text, names)
        return names["fast"](x, w)

    return fast


def by_function(folder, text, **options):
    return module.judge(
        from_text(text), slow, PROBLEMS, inputs=inputs, session_s=0.0, limit_s=LIMIT_S, **options
    )


def by_folder(folder, problems=(), read=None, **options):
    with read_task(folder, problems, **(read or {})) as task:
        return module.judge(
            task.candidate,
            task.reference,
            task.problems,
            inputs=task.inputs,
            session_s=0.0,
            limit_s=LIMIT_S,
            **options,
        )


def by_two_files(folder, text, **options):
    return by_folder(gallery.as_functions(folder, text), **options)


def by_models(folder, text, **options):
    return by_folder(gallery.as_models(folder, text), PROBLEMS, **options)


def by_trace(folder, text, **options):
    return by_folder(gallery.as_trace(folder, text), **options)


DOORS = {"function": by_function, "files": by_two_files, "models": by_models, "trace": by_trace}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", gallery.WRONG)
def test_wrong_kernel_is_refused_through_every_door(name, door, tmp_path):
    verdict = DOORS[door](tmp_path, gallery.WRONG[name])
    assert verdict.refused


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", gallery.HONEST)
def test_honest_kernel_is_accepted_through_every_door(name, door, tmp_path):
    verdict = DOORS[door](tmp_path, gallery.HONEST[name], check_only=True)
    assert verdict.refused == ""


def test_honest_kernel_that_is_timed_is_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOKS", {2: 1.0})
    verdict = by_models(tmp_path, gallery.HONEST["uses_a_pool_of_threads"])
    assert verdict.refused == ""
    assert verdict.speedup > 0


@pytest.mark.parametrize("name", gallery.WRONG_MODELS)
def test_wrong_model_is_refused(name, tmp_path):
    folder = gallery.as_models(tmp_path, gallery.WRONG_MODELS[name])
    assert by_folder(folder).refused


@pytest.mark.parametrize("name", gallery.WRONG_STATES)
def test_model_that_changes_its_buffers_otherwise_is_refused(name, tmp_path):
    folder = gallery.as_models(tmp_path, gallery.WRONG_STATES[name], gallery.MODEL_WITH_STATE)
    assert by_folder(folder).refused


@pytest.mark.parametrize("name", gallery.HONEST_STATES)
def test_model_that_changes_its_buffers_alike_is_accepted(name, tmp_path):
    folder = gallery.as_models(tmp_path, gallery.HONEST_STATES[name], gallery.MODEL_WITH_STATE)
    assert by_folder(folder, check_only=True).refused == ""


@pytest.mark.parametrize("name", gallery.WRONG_GRADIENTS)
def test_wrong_gradients_are_refused(name, tmp_path):
    folder = gallery.as_models(tmp_path, gallery.WRONG_GRADIENTS[name])
    assert by_folder(folder, read={"backward": True}).refused


@pytest.mark.parametrize("name", gallery.HONEST_GRADIENTS)
def test_right_gradients_are_accepted(name, tmp_path):
    folder = gallery.as_models(tmp_path, gallery.HONEST_GRADIENTS[name])
    assert by_folder(folder, read={"backward": True}, check_only=True).refused == ""


def test_gradient_that_is_constant_for_constant_gradients_is_refused(tmp_path):
    folder = gallery.as_models(tmp_path, gallery.CONSTANT_GRADIENT, gallery.LINEAR_MODEL)
    assert by_folder(folder, read={"backward": True}).refused


@pytest.mark.parametrize("name", gallery.WRONG_SOLUTIONS)
def test_wrong_solution_that_writes_its_outputs_is_refused(name, tmp_path):
    text = gallery.WRONG_SOLUTIONS[name]
    assert by_folder(gallery.as_trace(tmp_path, text, writes=True)).refused


def test_triton_solution_is_accepted_only_if_it_is_right():
    pytest.importorskip("triton")
    script = Path(gallery.__file__).with_name("judged_triton.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    refusals = json.loads(done.stdout)
    assert refusals.pop("right") == ""
    assert refusals.keys() == gallery.WRONG_TRITON.keys()
    for reason in refusals.values():
        assert "wrong:" in reason or "changes its argument" in reason


# Functions of NumPy.


def _drawn(array, rng):
    if array.dtype.kind == "f":
        return rng.random(array.shape).astype(array.dtype)
    return rng.integers(1000, size=array.shape).astype(array.dtype)


@pytest.mark.parametrize("name", WRONG_FUNCTIONS)
def test_wrong_function_is_not_accepted(name):
    function, arguments = WRONG_FUNCTIONS[name]

    def redrawn(n, seed):
        rng = np.random.default_rng(seed)
        return tuple(_drawn(array, rng) for array in arguments)

    def wrong(*given):
        return function(*given, wrong=1)

    with suppress(UsageError):  # some defaults give the same for all inputs
        assert module.judge(wrong, function, [{"n": 1}], inputs=redrawn, session_s=0.0).refused


# The tool of the Model Context Protocol.


class CommandsInThisProcess:
    """Runs a command of Foretune where the judge's workers are forked."""

    def __init__(self, capsys):
        self.capsys = capsys

    async def run(self, arguments, context):
        exit_code = main(["--json", *arguments])
        return {"exit_code": exit_code, "result": json.loads(self.capsys.readouterr().out)}


@pytest.fixture
def judge_tool(tmp_path, capsys):
    """Return a function that calls the tool ``judge`` of a served folder."""
    anyio = pytest.importorskip("anyio")
    pytest.importorskip("mcp")
    from foretune.cli.tool_server import ServedFolder, Tools

    tools = Tools(ServedFolder(tmp_path.resolve()), CommandsInThisProcess(capsys))

    def call(**arguments):
        return anyio.run(lambda: tools.judge(None, **arguments))

    return call


@pytest.mark.parametrize(
    "write",
    [
        gallery.as_functions,
        pytest.param(gallery.as_models, marks=pytest.mark.extended),
        pytest.param(gallery.as_trace, marks=pytest.mark.extended),
    ],
)
@pytest.mark.parametrize("name", gallery.WRONG)
def test_wrong_kernel_is_refused_by_the_tool(name, write, tmp_path, judge_tool):
    folder = tmp_path / "task"
    folder.mkdir()
    write(folder, gallery.WRONG[name])
    problems = ["rows=48", "rows=33"] if write is gallery.as_models else []
    answer = judge_tool(candidate="task", problems=problems)
    assert answer["exit_code"] == 1
    assert answer["result"]["refused"]


def test_tool_judges_gradients(tmp_path, judge_tool):
    gallery.as_models(tmp_path, gallery.WRONG_GRADIENTS["has_no_gradient_of_weights"])
    answer = judge_tool(candidate=".", backward=True)
    assert "gradient of w" in answer["result"]["refused"]


# The gallery itself.


def test_gallery_is_large_enough_and_every_text_is_distinct():
    assert len(gallery.WRONG) >= 45
    assert len({*gallery.WRONG.values()}) == len(gallery.WRONG)
    assert len(gallery.HONEST) >= 20


def test_gallery_page_names_every_kernel():
    page = Path(__file__).parents[2].joinpath("docs", "judge.md").read_text(encoding="utf-8")
    tables = (
        gallery.WRONG,
        gallery.HONEST,
        gallery.WRONG_MODELS,
        gallery.WRONG_STATES,
        gallery.WRONG_GRADIENTS,
        gallery.WRONG_SOLUTIONS,
        gallery.WRONG_TRITON,
    )
    assert [name for table in tables for name in table if f"`{name}`" not in page] == []
