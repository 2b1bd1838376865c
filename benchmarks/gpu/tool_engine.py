"""A process of a serving engine, as vLLM's are: plugins, then kernels, then requests.

    python benchmarks/gpu/tool_engine.py serve           # answers requests in threads
    python benchmarks/gpu/tool_engine.py warm-up CALLS   # as 'foretune warm-up CALLS'
    python benchmarks/gpu/tool_engine.py stock           # measures the list with stock Triton

`tool_server.py` starts it. It gets ready, waits for a line on its input, and prints a last line of
JSON. With ``--replay DEVICE``, nothing is launched.
"""

import argparse
import contextlib
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder)
    for folder in ("benchmarks", "benchmarks/gpu", "examples/kernels", "tests/replay_gpu")
)

import torch
import triton
from library_calls import Inputs
from library_modules import replayed
from library_side import first, name_of

import foretune  # noqa: F401  before the turn

PLUGINS = "vllm.general_plugins"
THREADS = 4
REPEATS = 2
"""Requests of each size."""


class LaunchCounter:
    """Counts launches of Triton's kernels, by the thread that launches."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        triton.knobs.runtime.launch_enter_hook.add(self._add)

    def _add(self, metadata: Any) -> None:
        self._of_thread.launches = getattr(self._of_thread, "launches", 0) + 1

    def count(self, call: Any) -> tuple[int, Any]:
        """Return how many kernels a call launches in this thread, and what it returns."""
        self._of_thread.launches = 0
        result = call()
        return self._of_thread.launches, result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve", "warm-up", "stock"])
    parser.add_argument("calls", nargs="?")
    parser.add_argument("--replay", default="")
    options = parser.parse_args()
    if not options.replay:
        torch.zeros(1, device="cuda")
    if not sys.stdin.readline():
        return
    with replayed(options.replay) if options.replay else contextlib.nullcontext():
        if options.command == "warm-up":
            from foretune.cli import main as run_command

            sys.exit(run_command(["warm-up", options.calls, "--json"]))
        act = serve if options.command == "serve" else measure_list
        print(json.dumps(act(is_replayed=bool(options.replay))))


def load_plugins() -> str:
    """Load the plugins as vLLM does; say how Foretune was found."""
    found = [plugin for plugin in entry_points(group=PLUGINS) if plugin.name == "foretune"]
    if found:
        found[0].load()()
        return "loaded by its entry point"
    from foretune.tune.doors import patch_server

    patch_server()
    return "called directly, because the package is not installed"


def serve(is_replayed: bool) -> dict[str, Any]:
    """Answer requests; return how many kernels each launched, its choice, and its error."""
    plugin = load_plugins()
    from tool_kernels import load_service

    service = load_service(Inputs(is_replayed))
    counter = LaunchCounter()
    requests = service.requests * REPEATS
    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(lambda request: counter.count(request.call), requests))
    errors = []
    chosen = []
    for request in service.requests:
        launches, output = counter.count(request.call)
        answers.append((launches, output))
        chosen.append(name_of(service.tuner.best_config))
    if not is_replayed:
        torch.cuda.synchronize()
        for request, (_, output) in zip([*requests, *service.requests], answers, strict=True):
            wanted = request.expected()
            errors.append(float((output.float() - wanted).norm() / wanted.norm()))
    return {
        "kernel": service.name,
        "plugin": plugin,
        "tuner": type(service.tuner).__module__.partition(".")[0],
        "listed": len(service.tuner.configs),
        "launches": [launches for launches, _ in answers],
        "errors": errors,
        "chosen": chosen,
    }


def measure_list(is_replayed: bool) -> dict[str, Any]:
    """Return the milliseconds of every configuration, per request, as Triton's tuner has them."""
    from tool_kernels import load_service

    service = load_service(Inputs(is_replayed))
    times = []
    for request in service.requests:
        service.tuner.configs_timings = {}
        request.call()
        timings = service.tuner.configs_timings
        times.append({name_of(config): first(time) for config, time in timings.items()})
    return {"default": name_of(service.tuner.configs[0]), "times": times}


if __name__ == "__main__":
    main()
