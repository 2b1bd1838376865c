"""The tools of the Model Context Protocol, called by the protocol's own client."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio
import psutil
import pytest

pytest.importorskip("mcp")

from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.server.mcpserver.exceptions import ToolError

from foretune.cli.tool_server import ServedFolder, make_server, tool_schemas
from foretune.errors import UsageError

FUNCTION = """
import time
import numpy as np

def inputs(rows, seed):
    return (np.random.default_rng(seed).random((rows, 8)),)

def sums(x, step=1):
    return np.concatenate([x[i : i + step].sum(axis=1) for i in range(0, len(x), step)])
"""
TRITON_FUNCTION = """
import numpy as np
import torch
import triton
import triton.language as tl

def inputs(n, seed):
    return (np.random.default_rng(seed).random(n, np.float32),)

@triton.jit
def square(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(out + i, value * value, mask=i < n)

def squares(x, block=16):
    x = torch.from_numpy(x)
    out = torch.empty_like(x)
    square[(triton.cdiv(len(x), block),)](x, out, len(x), BLOCK=block)
    return out.numpy()
"""
CANDIDATE = "def sums(x):\n    return x.sum(axis=1) * 2\n"
HANGS = "import time\ndef sums(x):\n    time.sleep(60)\n"
LIMIT_S = 200.0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETUNE_STORE", str(tmp_path / "store.db"))
    served = tmp_path / "served"
    served.mkdir()
    (served / "slow_sums.py").write_text(FUNCTION)
    (served / "new_sums.py").write_text(CANDIDATE)
    (served / "hanging_sums.py").write_text(HANGS)
    (tmp_path / "outside.py").write_text(CANDIDATE)
    return served


def with_client(folder, use, limit_s=LIMIT_S, **variables):
    """Start the server as a client does, and call ``use`` with the session."""

    async def connect():
        server = StdioServerParameters(
            command=sys.executable,
            args=["-P", "-m", "foretune", "mcp", str(folder)],
            env={**os.environ, **variables},
        )
        with anyio.fail_after(limit_s):
            async with stdio_client(server) as streams, ClientSession(*streams) as session:
                await session.initialize()
                return await use(session)

    return anyio.run(connect)


def running_in(folder):
    """Return the processes that work in a folder."""
    return [p for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(folder)]


def test_judge_refuses_a_wrong_candidate_and_reports_progress(folder):
    heard = []

    async def progress(done, total, message):
        heard.append(message)

    async def use(session):
        arguments = {
            "candidate": "new_sums.py:sums",
            "reference": "slow_sums.py:sums",
            "problems": ["rows=20"],
        }
        return await session.call_tool("judge", arguments, progress_callback=progress)

    answer = with_client(folder, use)
    assert not answer.is_error
    assert answer.structured_content["exit_code"] == 1
    assert "wrong" in answer.structured_content["result"]["refused"]
    assert any("checking" in message for message in heard)


def test_errors_are_one_line_that_says_what_to_do(folder):
    async def use(session):
        return [
            await session.call_tool("judge", {"candidate": "new_sums.py:sums"}),
            await session.call_tool(
                "judge", {"candidate": "../outside.py:sums", "reference": "slow_sums.py:sums"}
            ),
        ]

    without_reference, outside = with_client(folder, use)
    assert without_reference.is_error
    assert "add FILE.py:NAME" in without_reference.content[0].text
    assert outside.is_error
    assert "outside of the served folder" in outside.content[0].text


def test_cancelled_call_leaves_no_process(folder):
    async def use(session):
        arguments = {
            "candidate": "hanging_sums.py:sums",
            "reference": "slow_sums.py:sums",
            "problems": ["rows=20"],
        }
        started = anyio.Event()

        async def progress(done, total, message):
            started.set()

        async with anyio.create_task_group() as group:
            group.start_soon(
                lambda: session.call_tool("judge", arguments, progress_callback=progress)
            )
            await started.wait()
            assert running_in(folder)
            group.cancel_scope.cancel()

        # The server answers other calls while the command ends; the limit is the client's.
        while running_in(folder):
            await anyio.sleep(0.1)
        return await session.list_tools()

    assert with_client(folder, use).tools


def test_paths_outside_of_the_folder_are_refused(folder):
    served = ServedFolder(folder.resolve())
    (folder / "link.py").symlink_to(folder.parent / "outside.py")
    for text in ("../outside.py:sums", "/etc/passwd.py:f", "link.py:sums", "os:system", "a.py"):
        with pytest.raises(ToolError):
            served.location(text)
    assert served.location("slow_sums.py:sums").endswith("served/slow_sums.py:sums")


@pytest.fixture
def repository(folder):
    """Return the served folder as a repository without commits."""
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


def test_gate_compares_commits_of_the_served_repository(repository):
    async def use(session):
        return await session.call_tool("gate", {"revisions": "main..topic"})

    answer = with_client(repository, use)
    assert answer.is_error
    assert "there is no revision main" in answer.content[0].text


def test_gate_of_what_is_not_served_is_refused(repository):
    part = repository / "part"
    part.mkdir()
    for root, text, reason in [
        (repository, "main", "no BASE..HEAD"),
        (repository, "--install=touch x..y", "no BASE..HEAD"),
        (part, "main..topic", "start foretune mcp in the repository's folder"),
        (repository.parent, "main..topic", "git"),
    ]:
        with pytest.raises(ToolError, match=reason):
            ServedFolder(root.resolve()).revisions(text)


@dataclass(frozen=True)
class Assignment:
    """A function with a knob that is to be made faster, and its inputs."""

    text: str
    function: str
    knob: str
    values: str
    inputs: str
    problem: str


ASSIGNMENTS = {
    "numpy": Assignment(
        FUNCTION, "sums", "step", "1,10,100,1000", inputs="float64[2000,8]", problem="rows=2000"
    ),
    "triton": Assignment(
        TRITON_FUNCTION, "squares", "block", "16,64,256", inputs="float32[320]", problem="n=320"
    ),
}


@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize("language", ASSIGNMENTS)
def test_scripted_client_makes_a_kernel_faster_in_ten_calls(folder, language):
    """A client without other help reads the tools, tunes a function, and has a candidate judged."""
    task = ASSIGNMENTS[language]
    if language == "triton":
        pytest.importorskip("triton")
    calls = []
    default = f"{task.knob}={task.values.partition(',')[0]}"
    (folder / "old.py").write_text(task.text)

    async def use(session):
        async def call(name, **arguments):
            calls.append(name)
            answer = await session.call_tool(name, arguments)
            assert not answer.is_error, answer.content[0].text
            return answer.structured_content["result"]

        async def judge(candidate, **arguments):
            (folder / "new.py").write_text(candidate.replace("def inputs", "def unused"))
            return await call(
                "judge",
                candidate=f"new.py:{task.function}",
                reference=f"old.py:{task.function}",
                problems=[task.problem],
                **arguments,
            )

        tools = {tool.name for tool in (await session.list_tools()).tools}
        assert {"tune", "judge"} <= tools
        tuned = await call(
            "tune",
            function=f"old.py:{task.function}",
            inputs=[task.inputs],
            params=[f"{task.knob}={task.values}"],
        )
        best = tuned["best"]["config"][task.knob]
        judged = await judge(
            task.text.replace(default, f"{task.knob}={best}"), receipt="receipt.json"
        )
        wrong = await judge(task.text.replace("return ", "return 2 * "))
        return tuned, judged, wrong

    tuned, judged, wrong = with_client(folder, use, limit_s=4 * LIMIT_S, TRITON_INTERPRET="1")
    assert f"{task.knob}={tuned['best']['config'][task.knob]}" != default
    assert judged["accepted"], judged["refused"]
    assert judged["faster"]
    assert (folder / "receipt.json").exists()
    assert not wrong["accepted"]
    assert len(calls) <= 10


def test_every_tool_describes_all_its_arguments(folder):
    schemas = tool_schemas(make_server(folder))
    assert set(schemas) >= {"tune", "judge", "predict", "inspect"}
    for schema in schemas.values():
        properties = schema["properties"].items()
        described = {name for name, property_ in properties if property_.get("description")}
        assert described == set(schema["properties"])


def test_folder_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="no folder"):
        make_server(Path("/no/such/folder"))
