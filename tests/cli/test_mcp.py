"""The tools of the Model Context Protocol, called by the protocol's own client."""

import subprocess
import sys
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


def with_client(folder, use):
    """Start the server as a client does, and call ``use`` with the session."""

    async def connect():
        server = StdioServerParameters(
            command=sys.executable, args=["-P", "-m", "foretune", "mcp", str(folder)]
        )
        with anyio.fail_after(LIMIT_S):
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


@pytest.mark.extended
def test_scripted_client_makes_a_kernel_faster_in_ten_calls(folder):
    """A client without other help reads the tools, tunes a function, and has a candidate judged."""
    calls = []

    async def use(session):
        async def call(name, **arguments):
            calls.append(name)
            answer = await session.call_tool(name, arguments)
            assert not answer.is_error, answer.content[0].text
            return answer.structured_content["result"]

        tools = {tool.name for tool in (await session.list_tools()).tools}
        assert {"tune", "judge"} <= tools
        tuned = await call(
            "tune",
            function="slow_sums.py:sums",
            inputs=["float64[2000,8]"],
            params=["step=1,10,100,1000"],
        )
        best_step = tuned["best"]["config"]["step"]
        (folder / "tuned_sums.py").write_text(
            FUNCTION.replace("step=1", f"step={best_step}").replace("inputs", "unused")
        )
        judged = await call(
            "judge",
            candidate="tuned_sums.py:sums",
            reference="slow_sums.py:sums",
            problems=["rows=2000"],
            receipt="receipt.json",
        )
        wrong = await call(
            "judge",
            candidate="new_sums.py:sums",
            reference="slow_sums.py:sums",
            problems=["rows=2000"],
        )
        return tuned, judged, wrong

    tuned, judged, wrong = with_client(folder, use)
    assert tuned["best"]["config"]["step"] > 1
    assert judged["accepted"], judged["refused"]
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
