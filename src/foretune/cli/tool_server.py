"""Foretune's commands as tools of the Model Context Protocol, for programs that write kernels.

Each tool runs one command in a separate process, so that a user's code cannot write into the
protocol's stream, and a cancelled call ends with everything it started. A tool takes only files in
the folder that is served. See https://modelcontextprotocol.io
"""

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import anyio
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.text import TextReceiveStream
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from foretune.errors import UsageError
from foretune.version import __version__

INSTRUCTIONS = """Make kernels faster, and prove it. Work on files in the served folder.

1. tune: find the fastest values of a function's knobs, verified against its defaults.
2. judge: check that a candidate is correct, and how much faster it is than a reference.
3. predict: times that a trained predictor expects, without measuring.
4. inspect: what Triton compiles for a GPU, without a GPU.
5. gate: compare two commits of the served repository by its benchmarks.

Only a verdict of judge, tune or gate with its interval counts as faster."""
LAST_LINES = 20
"""Lines of a command's messages that a result repeats."""
STOP_S = 10.0
"""Seconds that a cancelled command has to store what it measured."""
INTERRUPT_EXIT_CODE = 130

Location = Annotated[str, Field(description="FILE.py:NAME, in the served folder")]
Problem = Annotated[str, Field(description="sizes like 'N=1024,M=64'")]
Problems = Annotated[list[str], Field(description="sizes like 'N=1024,M=64', one per problem")]


@dataclass(frozen=True)
class ServedFolder:
    """The folder whose files may be run.

    Raises ToolError for a path outside of it, also by a link.
    """

    root: Path

    def location(self, text: str) -> str:
        """Return FILE.py:NAME with a checked file."""
        file, colon, name = text.rpartition(":")
        if not colon or not file.endswith(".py"):
            raise ToolError(f"{text} is no FILE.py:NAME: name a function of a file")
        return f"{self.path(file)}:{name}"

    def path(self, text: str) -> Path:
        """Return a checked path, which need not exist."""
        path = (self.root / text).resolve()
        if not path.is_relative_to(self.root):
            raise ToolError(f"{text} lies outside of the served folder {self.root}")
        return path

    def revisions(self, text: str) -> str:
        """Return BASE..HEAD of the repository that is served as a whole."""
        if ".." not in text or text.startswith("-"):
            raise ToolError(f"{text} is no BASE..HEAD: name two commits, such as main..HEAD")

        # Imported here: the other tools do without, and start sooner.
        from foretune.tune.gate.revisions import Repository

        try:
            repository = Repository(self.root)
        except UsageError as e:
            raise ToolError(str(e)) from e
        if repository.root.resolve() != self.root:
            raise ToolError(
                f"the repository is {repository.root}, and only {self.root} is served: "
                "start foretune mcp in the repository's folder"
            )
        return text


@dataclass(frozen=True)
class CommandRunner:
    """Runs a command of Foretune in the served folder."""

    root: Path

    async def run(self, arguments: Sequence[str], context: Context[Any]) -> dict[str, Any]:
        """Return the command's JSON object, with its last messages and exit code.

        Each line of its messages is reported as progress. Raises ToolError if it fails; cancelling
        ends the command and its children.
        """
        command = [sys.executable, "-P", "-m", "foretune", "--json", *arguments]
        process = await anyio.open_process(
            command, cwd=self.root, stdin=subprocess.DEVNULL, start_new_session=os.name == "posix"
        )
        lines: deque[str] = deque(maxlen=LAST_LINES)
        output: list[str] = []
        try:
            async with anyio.create_task_group() as group:
                assert process.stdout is not None
                assert process.stderr is not None
                group.start_soon(_collect, process.stdout, output)
                group.start_soon(_report, process.stderr, lines, context)
            exit_code = await process.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await _stop(process)
            raise
        return _result("".join(output), list(lines), exit_code)


async def _collect(stream: ByteReceiveStream, output: list[str]) -> None:
    output.extend([text async for text in TextReceiveStream(stream, errors="replace")])


async def _report(stream: ByteReceiveStream, lines: deque[str], context: Context[Any]) -> None:
    """Report each line as progress; how many follow is not known."""
    rest = ""
    count = 0
    async for text in TextReceiveStream(stream, errors="replace"):
        *complete, rest = (rest + text).split("\n")
        for line in filter(None, map(str.strip, complete)):
            count += 1
            lines.append(line)
            await context.report_progress(count, None, line)
    if rest.strip():
        lines.append(rest.strip())


async def _stop(process: Process) -> None:
    """Interrupt a command, which stores what it measured; kill what does not end in time."""
    for kind in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(process.pid, kind)
            else:
                process.terminate()
        with anyio.move_on_after(STOP_S):
            await process.wait()


def _result(output: str, lines: list[str], exit_code: int) -> dict[str, Any]:
    try:
        data = json.loads(output)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        reason = next((line for line in reversed(lines) if line.startswith("foretune:")), "")
        said = reason or " ".join(lines[-1:]) or f"exit code {exit_code}"
        raise ToolError(said.removeprefix("foretune: "))
    return {"exit_code": exit_code, "result": data, "messages": lines}


@dataclass(frozen=True)
class Tools:
    """The tools of one folder; each method is a tool, and its docstring what a program reads."""

    folder: ServedFolder
    runner: CommandRunner

    async def tune(
        self,
        context: Context[Any],
        function: Location,
        inputs: Annotated[
            list[str],
            Field(description="a plain function's inputs in order: 'float32[8,4]', 'int32=7'"),
        ] = [],  # noqa: B006
        problem: Annotated[
            str, Field(description="a kernel's sizes, 'N=1024'; empty for a plain function")
        ] = "",
        params: Annotated[
            list[str], Field(description="knobs like 'block=1,16'; empty for a tunable's own")
        ] = [],  # noqa: B006
        restrict: Annotated[list[str], Field(description="rules like 'a * b <= 256'")] = [],  # noqa: B006
        budget: Annotated[str, Field(description="measurements, 'auto', or seconds: '60s'")] = "",
    ) -> dict[str, Any]:
        """Find the fastest values of a function's knobs, and verify the winner.

        The result says the winner, its ratio to the default with the 99 % interval, and the
        verdict: win, no_win or inconclusive. Outputs of all values are compared with the default's.
        """
        arguments = ["tune", self.folder.location(function), *_option("--problem", problem)]
        arguments += [
            *_options("--arg", inputs),
            *_options("--param", params),
            *_options("--restrict", restrict),
        ]
        return await self.runner.run([*arguments, *_option("--budget", budget)], context)

    async def judge(
        self,
        context: Context[Any],
        candidate: Annotated[str, Field(description="FILE.py:NAME, or a task's folder")],
        reference: Annotated[str, Field(description="FILE.py:NAME; empty for a folder")] = "",
        problems: Problems = [],  # noqa: B006
        inputs: Annotated[str, Field(description="FILE.py:NAME of inputs(…, seed)")] = "",
        tolerance: Annotated[float | None, Field(description="largest relative error")] = None,
        receipt: Annotated[str, Field(description="file for a receipt, in the folder")] = "",
        solution: Annotated[str, Field(description="name, if a folder has several")] = "",
        backward: Annotated[bool, Field(description="also judge gradients of models")] = False,
    ) -> dict[str, Any]:
        """Check that a candidate is correct, and how much faster it is than a reference.

        Each runs in separate processes on inputs that it never saw. The result says whether the
        candidate is accepted, or why it is refused; the speed-up with its 99 % interval; and the
        verdict. A refusal is a result, not an error.
        """
        if candidate.endswith(".py") or ".py:" in candidate:
            arguments = ["judge", self.folder.location(candidate)]
        else:
            arguments = ["judge", str(self.folder.path(candidate))]
        if reference:
            arguments.append(self.folder.location(reference))
        if inputs:
            arguments += ["--inputs", self.folder.location(inputs)]
        if receipt:
            arguments += ["--receipt", str(self.folder.path(receipt))]
        if tolerance is not None:
            arguments += ["--tolerance", str(tolerance)]
        arguments += _option("--solution", solution)
        if backward:
            arguments.append("--backward")
        return await self.runner.run([*arguments, *_options("--problem", problems)], context)

    async def predict(
        self,
        context: Context[Any],
        predictor: Annotated[str, Field(description="a predictor's folder, or 'auto'")],
        kernel: Annotated[str, Field(description="a built-in kernel's name; empty: its own")] = "",
        problem: Problem = "",
        top: Annotated[int, Field(description="number of configurations", ge=1, le=1000)] = 10,
    ) -> dict[str, Any]:
        """Return the times that a trained predictor expects, without measuring anything."""
        known = predictor if predictor == "auto" else str(self.folder.path(predictor))
        arguments = ["predict", known, *_option("--kernel", kernel)]
        arguments += [*_option("--problem", problem), "--top", str(top)]
        return await self.runner.run(arguments, context)

    async def inspect(
        self,
        context: Context[Any],
        kernel: Location,
        target: Annotated[str, Field(description="sm_80, sm_90, sm_100, gfx942, …")],
        arguments: Annotated[list[str], Field(description="argument types, 'x=*fp32'")] = [],  # noqa: B006
        configs: Annotated[list[str], Field(description="'BLOCK=64,num_warps=4'")] = [],  # noqa: B006
    ) -> dict[str, Any]:
        """Compile a Triton kernel for a GPU that need not be here: registers, shared memory."""
        command = ["inspect", self.folder.location(kernel), "--target", target]
        command += [*_options("--arg", arguments), *_options("--config", configs)]
        return await self.runner.run(command, context)

    async def gate(
        self,
        context: Context[Any],
        revisions: Annotated[str, Field(description="BASE..HEAD, such as 'main..HEAD'")],
        benchmarks: Annotated[
            str, Field(description="file or folder in the repository; empty: benchmarks/, …")
        ] = "",
        only: Annotated[list[str], Field(description="parts of the benchmarks' names")] = [],  # noqa: B006
        budget: Annotated[float, Field(description="seconds of measuring", gt=0)] = 60.0,
        relevant: Annotated[float, Field(description="change that counts", gt=0, lt=1)] = 0.02,
        compare: Annotated[bool, Field(description="whether outputs must be equal")] = False,
    ) -> dict[str, Any]:
        """Build two commits of the served repository, and compare them by their benchmarks.

        The result says per benchmark: faster, slower, same or cannot tell, with the ratio and its
        interval. exit_code is 1 if something is slower. The commits' own installation runs.
        """
        arguments = ["gate", self.folder.revisions(revisions)]
        if benchmarks:
            arguments.append(str(self.folder.path(benchmarks)))
        arguments += [f"--budget={budget}", f"--relevant={relevant}", *_options("--only", only)]
        if compare:
            arguments.append("--compare")
        return await self.runner.run(arguments, context)


def make_server(root: Path) -> MCPServer[Any]:
    """Return a server of one folder's files; UsageError if there is no such folder."""
    root = root.resolve()
    if not root.is_dir():
        raise UsageError(f"there is no folder {root}: name one that exists")
    server: MCPServer[Any] = MCPServer(
        name="foretune", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING"
    )
    tools = Tools(ServedFolder(root), CommandRunner(root))
    for tool in (tools.tune, tools.judge, tools.predict, tools.inspect, tools.gate):
        server.tool()(tool)
    return server


def tool_schemas(server: MCPServer[Any]) -> Mapping[str, Any]:
    """Return the JSON schema of each tool's arguments, by name."""
    tools = anyio.run(server.list_tools)
    return {tool.name: tool.input_schema for tool in tools}


def _option(name: str, value: str) -> list[str]:
    return [f"{name}={value}"] if value else []


def _options(name: str, values: Sequence[str]) -> list[str]:
    return [f"{name}={value}" for value in values]
