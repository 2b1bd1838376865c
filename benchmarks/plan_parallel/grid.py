"""Operators measured on this machine's ranks: at which sizes, and how.

Sizes lie on a grid; what steps need lies between them, so that it must be predicted.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from foretune.support.progress import Progress
from plan_parallel.arrangement import RANK_MODES, RankMode
from plan_parallel.ranks import RankGroup

FORMAT = "fp32"
"""Ranks compute in 32 bits: processors without matrix units in 16 are slower in these."""
EXCHANGES = ("all_reduce", "all_gather", "send_recv")
LOCAL_DEVICE = "here"
PASSES = 2
MIN_BOX_S = 0.006
MAX_BOX_S = 0.15
"""Seconds for one operator and pass."""


@dataclass(frozen=True)
class Grid:
    """Sizes that operators are measured at.

    Attributes:
        rows: tokens of projections, and every second of them of row-wise operators. Libraries
            multiply one, two and three rows in other ways than more: times are not smooth there.
        widths: of both sides of a projection, and of rows.
        requests: of attention.
        prompts, contexts: tokens of a request, new or in the cache.
        heads: query heads of a rank; as many key heads, and a quarter of them.
        message_kib: of exchanges.
        max_gflop: Largest projection; larger ones would take more time than all others.
    """

    rows: tuple[int, ...] = (1, 2, 3, 4, 6, 9, 16, 32, 64, 128)
    widths: tuple[int, ...] = (128, 448, 1472, 5120)
    requests: tuple[int, ...] = (1, 4, 16)
    prompts: tuple[int, ...] = (16, 64, 256)
    contexts: tuple[int, ...] = (64, 256, 1024)
    heads: tuple[int, ...] = (2, 8, 32)
    message_kib: tuple[float, ...] = (0.3, 1.2, 4.5, 18, 70, 280, 1100, 2200, 4400)
    max_gflop: float = 2.0

    def operators(self) -> list[tuple[str, dict[str, Any]]]:
        """Return (kernel, ``problem.*`` columns) of all that ranks run by themselves."""
        return [*self._projections(), *self._attention(), *self._rows()]

    def exchanges(self, ranks: int) -> list[dict[str, Any]]:
        """Return the ``problem.*`` columns of what each exchange is measured at."""
        return [{"message_bytes": 1024.0 * kib, "devices": ranks} for kib in self.message_kib]

    def _projections(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for m, n, k in itertools.product(self.rows, self.widths, self.widths):
            if 2e-9 * m * n * k <= self.max_gflop and n * k <= 2**23:
                yield "gemm", {"M": m, "N": n, "K": k}

    def _attention(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for batch, heads, shared in itertools.product(self.requests, self.heads, (1, 4)):
            if heads % shared:
                continue
            shape = {"heads": heads, "kv_heads": heads // shared, "head_dim": 64, "window": 0}
            for length in self.prompts:
                if batch * heads * length**2 <= 2**22:
                    sizes = {"batch": batch, "seq_len": length, "prefix_len": 0}
                    yield "attention_prefill", {**sizes, **shape}
            for length in self.contexts:
                if batch * heads * length <= 2**17:
                    yield "attention_decode", {"batch": batch, "kv_len": length, **shape}

    def _rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for rows, columns in itertools.product(self.rows[1::2], self.widths):
            for op in ("rms_norm", "embedding", "rope", "silu_and_mul"):
                kernel = "norm" if op == "rms_norm" else "elementwise"
                yield kernel, {"rows": rows, "columns": columns // 64 * 64, "op": op}


QUICK_GRID = Grid(
    rows=(1, 2, 3, 4, 7, 20, 64, 200),
    widths=(128, 600, 1500, 4096),
    requests=(1, 8),
    prompts=(16, 128),
    contexts=(64, 512),
    heads=(2, 12),
    message_kib=(0.6, 2.4, 9, 40, 160, 640, 1300, 2600),
    max_gflop=1.0,
)
"""A grid that takes seconds."""


def measure_operators(
    group: RankGroup, grid: Grid, seconds: float, progress: Progress | None = None
) -> pd.DataFrame:
    """Return the run table of a grid, measured on the ranks of ``group``.

    ``config.backend`` says whether one rank ran by itself or all at the same time; then the time
    is the mean of theirs. Everything is measured in two passes, of which the faster counts: what
    disturbs a machine for a while disturbs one of them.

    Args:
        group: where they run.
        grid: what.
        seconds: that all of it may take, roughly.
        progress: is told.
    """
    tasks: list[tuple[str, dict[str, Any], RankMode]] = [
        (kernel, problem, mode) for mode in RANK_MODES for kernel, problem in grid.operators()
    ]
    for kernel in EXCHANGES:
        tasks += [(kernel, problem, "together") for problem in grid.exchanges(len(group))]
    box_s = min(max(seconds / PASSES / len(tasks), MIN_BOX_S), MAX_BOX_S)
    times = np.full(len(tasks), np.inf)
    if progress:
        progress.start("operators", PASSES * len(tasks))
    for _ in range(PASSES):
        for i, (kernel, problem, mode) in enumerate(tasks):
            times[i] = min(times[i], _measured_ms(group, kernel, problem, mode, box_s))
            if progress:
                progress.advance(f"{kernel}, {mode}")
    return pd.DataFrame([_row(*each, ms) for each, ms in zip(tasks, times, strict=True)])


def _measured_ms(
    group: RankGroup, kernel: str, problem: Mapping[str, Any], mode: RankMode, box_s: float
) -> float:
    if kernel in EXCHANGES:
        return float(np.mean(group.call("time_exchange", kernel, problem, box_s)))
    ranks = range(1 if mode == "alone" else len(group))
    together = mode == "together"
    return float(
        np.mean(group.call("time_operator", kernel, problem, box_s, together, ranks=list(ranks)))
    )


def _row(kernel: str, problem: Mapping[str, Any], mode: RankMode, ms: float) -> dict[str, Any]:
    columns = {f"problem.{name}": value for name, value in problem.items()}
    formats = {"config.format": FORMAT, "config.kv_format": "bf16", "config.backend": mode}
    return {
        "kernel": kernel,
        "device": LOCAL_DEVICE,
        "status": "ok",
        **columns,
        **formats,
        "time_ms": ms,
    }
