"""A serving engine in a process of its own, without a GPU: plugins, kernels, requests.

    python fake_engine.py serve REQUESTS     # prints the launches of each request, as JSON
    python fake_engine.py warm-up CALLS      # runs 'foretune warm-up CALLS --json'

As vLLM does, it first loads the plugins of its entry points, then imports its kernels, then
answers requests in several threads. REQUESTS are sizes, with commas between. A replayed device
counts the launches: stock Triton's tuner launches every configuration of the list in a request.
"""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "replay_gpu"))

from replay_driver import ReplayDriver

PLUGINS = "vllm.general_plugins"
THREADS = 4


def time_of(launch):
    """Return milliseconds: the default, a block of 32, takes 5; the best, one of 512, takes 1."""
    return 1.0 + abs(launch.config["BLOCK"].bit_length() - 10)


class CountingDriver(ReplayDriver):
    """Knows the launches of each thread, and so of each request."""

    def __init__(self):
        self.of_thread = threading.local()
        super().__init__(self._time)

    def _time(self, launch):
        self.of_thread.blocks = [*getattr(self.of_thread, "blocks", ()), launch.config["BLOCK"]]
        return time_of(launch)


def serve(sizes):
    """Start, answer a request of each size, and print the blocks that each launched."""
    driver = CountingDriver()
    with driver.active():
        for plugin in entry_points(group=PLUGINS):
            plugin.load()()

        import torch
        from fake_engine_kernels import LIST, answer

        tensor = torch.zeros(max(sizes))

        def request(size):
            driver.of_thread.blocks = []
            answer(tensor, tensor, size)
            return driver.of_thread.blocks

        with ThreadPoolExecutor(THREADS) as pool:
            blocks_by_request = list(pool.map(request, sizes))
    print(json.dumps({"listed": len(LIST), "requests": blocks_by_request}))


def warm_up(calls):
    """Run the command on the replayed device."""
    from foretune.cli import main

    with ReplayDriver(time_of).active():
        sys.exit(main(["warm-up", calls, "--json"]))


if __name__ == "__main__":
    command, argument = sys.argv[1:]
    if command == "warm-up":
        warm_up(argument)
    else:
        serve([int(size) for size in argument.split(",")])
