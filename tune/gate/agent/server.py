"""Answers the requests of a gate: which benchmarks are there, and how long do they take?

A request is a mapping whose key ``do`` names what to do; every answer is a mapping, too, in which
``failure`` says why there is none. They are JSON: neither side runs what the other sends.

    load      {"path", "commands", "imports", "pytest", "keep_freed_memory"}
                                          ->  benchmarks, left_out, environment
    open      {"name"}                    ->  {}; the benchmark is set up
    count     {"seed"}                    ->  calls, call_ns
    turn      {"calls", "bursts", "seed"} ->  wall_ns, cpu_ns
    gpu       {"calls", "seed"}           ->  gpu_ns
    memory    {"seed"}                    ->  peak_mib
    output    {"seed"}                    ->  output
    close     {}                          ->  {}; the benchmark is torn down
    describe  {}                          ->  environment; no benchmark is open
"""

import gc
import json
import os
import platform
import socket
import sys
import sysconfig
from functools import partial
from typing import Any

from foretune.collect.message_channel import Channel
from foretune.collect.worker_environment import WORKER_VARIABLE, keep_freed_memory
from foretune.tune.gate.agent.discovery import Found, find_benchmarks
from foretune.tune.gate.agent.output_data import to_data
from foretune.tune.gate.agent.programs import CommandBenchmark, ImportBenchmark
from foretune.tune.gate.agent.pytest_items import ServingPlugin, TestFailed, run_pytest
from foretune.tune.gate.agent.timed_call import peak_memory_mib

MAX_CHARACTERS = 300
"""Characters of a failure that are sent."""

Message = dict[str, Any]


class _Ended(BaseException):
    """The gate has closed the connection."""


class Server:
    """Answers requests until the connection ends."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._number = 0
        self._benchmarks: dict[str, Any] = {}

    def run(self) -> None:
        """Load the benchmarks of the first request, and answer the others."""
        request = self._receive()
        if request["keep_freed_memory"]:
            keep_freed_memory()
        path = request["path"]
        found = find_benchmarks(path) if path else Found()
        for command in request["commands"]:
            found.benchmarks[command] = CommandBenchmark(command)
        for module in request["imports"]:
            found.benchmarks[f"import {module}"] = ImportBenchmark(module)
        if not found.test_files:
            self._offer(found)
            return

        folder = path if os.path.isdir(path) else os.path.dirname(path)
        plugin = ServingPlugin(folder, lambda tests, left_out: self._offer(found, tests, left_out))
        failure = run_pytest(found.test_files, request["pytest"], plugin)
        if failure:
            names = [os.path.relpath(file, folder) for file in found.test_files]
            self._offer(found, {}, dict.fromkeys(names, failure))

    def _offer(
        self,
        found: Found,
        tests: dict[str, Any] | None = None,
        left_out: dict[str, str] | None = None,
    ) -> None:
        self._benchmarks = {**found.benchmarks, **(tests or {})}

        # Garbage is collected before each turn. What was loaded stays: to search all of it took
        # most of a session's time.
        gc.collect()
        gc.freeze()
        self._answer(
            {
                "benchmarks": list(self._benchmarks),
                "left_out": {**found.left_out, **(left_out or {})},
                "environment": describe_environment(),
            }
        )
        while True:
            request = self._receive()
            if request["do"] == "describe":
                self._answer({"environment": describe_environment()})
                continue
            if request["do"] != "open":
                self._answer({"failure": f"no benchmark is open for {request['do']}"})
                continue
            failure = self._run_benchmark(request["name"])
            self._answer({"failure": failure} if failure else {})

    def _run_benchmark(self, name: str) -> str:
        """Set up, serve and tear down a benchmark; return why it failed, or ""."""
        benchmark = self._benchmarks.get(name)
        if benchmark is None:
            return "it is not there"
        is_served = False

        def serve(call: Any) -> None:
            nonlocal is_served
            is_served = True
            self._answer({})
            self._serve_call(call)

        try:
            benchmark.run(serve)
        except Exception as e:
            return _describe(e)
        return "" if is_served else "it does not call its fixture"

    def _serve_call(self, call: Any) -> None:
        """Answer the requests about an open benchmark until it is closed."""
        while True:
            request = self._receive()
            do = request["do"]
            if do == "count":
                self._answer(call.count_calls(request["seed"]))
            elif do == "turn":
                self._answer(call.turn(request["calls"], request["bursts"], request["seed"]))
            elif do == "gpu":
                self._answer(call.gpu_turn(request["calls"], request["seed"]))
            elif do == "memory":
                peak = peak_memory_mib(partial(call.result, request["seed"]))
                self._answer({"peak_mib": peak})
            elif do == "output":
                self._answer({"output": to_data(call.result(request["seed"]))})
            elif do == "close":
                return
            else:
                self._answer({"failure": f"{do} is no request"})

    def _receive(self) -> Message:
        try:
            self._number, request = self._channel.receive()
        except (EOFError, OSError) as e:
            raise _Ended from e
        return request

    def _answer(self, content: Message) -> None:
        try:
            self._channel.send(self._number, content)
        except OSError as e:
            raise _Ended from e


def describe_environment() -> Message:
    """Return the versions of Python and of all packages, and the files of loaded modules."""
    from importlib.metadata import distributions

    packages: dict[str, str] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            packages.setdefault(str(name).lower().replace("_", "-"), distribution.version)
    files = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and _is_third_party(file):
            files[name] = os.path.realpath(file)
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": packages,
        "files": files,
        "hidden": _hidden_names(files),
    }


def _hidden_names(files: dict[str, str]) -> list[str]:
    """Return the top names of loaded modules that an installed module of this name would have."""
    paths = sysconfig.get_paths()
    folders = {os.path.realpath(paths[kind]) for kind in ("purelib", "platlib")}
    hidden = set()
    for name, file in files.items():
        top = name.partition(".")[0]
        if any(file.startswith(folder + os.sep) for folder in folders):
            continue
        for folder in folders:
            place = os.path.join(folder, top)
            if os.path.isfile(f"{place}.py") or os.path.isfile(os.path.join(place, "__init__.py")):
                hidden.add(top)
    return sorted(hidden)


def _is_third_party(file: str) -> bool:
    """Whether a file belongs neither to Python nor to this agent."""
    standard = os.path.dirname(os.path.realpath(os.__file__))
    here = os.path.dirname(os.path.realpath(__file__))
    path = os.path.realpath(file)
    is_standard = path.startswith(standard + os.sep) and "site-packages" not in path
    return not is_standard and not path.startswith(here + os.sep)


def _describe(error: Exception) -> str:
    if isinstance(error, TestFailed):
        return str(error)[:MAX_CHARACTERS]
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:MAX_CHARACTERS]


def _dumps(content: Any) -> bytes:
    return json.dumps(content).encode()


def serve(descriptor: int, mark: bytes) -> None:
    """Answer requests over an inherited socket; ``mark`` begins every message."""
    os.environ[WORKER_VARIABLE] = "1"
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    if hasattr(os, "register_at_fork"):  # processes that a benchmark forks must not answer
        os.register_at_fork(after_in_child=sock.close)
    channel = Channel(sock, mark, dumps=_dumps, loads=json.loads)
    try:
        Server(channel).run()
    except _Ended:
        pass
    finally:
        sys.stdout.flush()
        os._exit(0)  # threads of a benchmark must not keep the process
