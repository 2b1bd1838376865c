"""Reads what an engine says about itself: the page ``/metrics``, in Prometheus' text format."""

import re
import threading
from collections.abc import Mapping
from math import isfinite
from types import TracebackType
from typing import Self

from foretune.plan.prove.server import read_text

PATH = "/metrics"
SAMPLE_S = 0.5
"""Seconds between two looks while a load runs."""
GAUGES: Mapping[str, tuple[str, ...]] = {
    "cache_used": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
        "kv_cache_utilization",
    ),
    "running": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "llamacpp:requests_processing",
        "num_requests_running",
    ),
    "waiting": (
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "llamacpp:requests_deferred",
        "num_requests_waiting",
    ),
}
"""Our name -> the engines' names of a gauge. Its largest value during a load counts."""
COUNTERS: Mapping[str, tuple[str, ...]] = {
    "preempted": ("vllm:num_preemptions_total",),
    "cache_queries": ("vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total"),
    "cache_hits": ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
}
"""Our name -> the engines' names of a counter. What a load adds to it counts."""
_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(\{[^}]*\})?\s+(?P<value>\S+)")


def parse_metrics(text: str) -> dict[str, float]:
    """Return the sum of a metric's samples over their labels; lines of another form are ignored."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None:
            continue
        try:
            value = float(sample["value"])
        except ValueError:
            continue
        if isfinite(value):
            values[sample["name"]] = values.get(sample["name"], 0.0) + value
    return values


class EngineMetrics:
    """Watches an engine's metrics while a load runs; a context manager.

    `values` are known when the block ends: of `GAUGES` the largest, of `COUNTERS` the increase, and
    ``cache_hit_share``. What the engine does not report is missing.
    """

    def __init__(self, url: str) -> None:
        self.values: dict[str, float] = {}
        self._url = url + PATH
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._before = self._read()
        self._largest: dict[str, float] = {}
        if self._before:
            self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if not self._before:
            return
        self._watcher.join()
        after = self._read()
        increase = {
            name: after[name] - self._before.get(name, 0.0) for name in COUNTERS if name in after
        }
        queries = increase.pop("cache_queries", 0.0)
        hits = increase.pop("cache_hits", 0.0)
        if queries > 0:
            increase["cache_hit_share"] = hits / queries
        self.values = self._largest | increase

    def _watch(self) -> None:
        """Keep the largest value of every gauge until the load ends."""
        while not self._ended.wait(SAMPLE_S):
            now = self._read()
            for name in GAUGES:
                if name in now:
                    self._largest[name] = max(self._largest.get(name, 0.0), now[name])

    def _read(self) -> dict[str, float]:
        """Return the known metrics under our names."""
        told = parse_metrics(read_text(self._url))
        known: dict[str, float] = {}
        for ours, theirs in (*GAUGES.items(), *COUNTERS.items()):
            name = next((name for name in theirs if name in told), None)
            if name is not None:
                known[ours] = told[name]
        return known
