"""Replay: search a recorded space as if nothing of it were known, many times over."""

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from foretune.errors import UsageError
from foretune.measurement import Measurement
from foretune.search.drivers import run
from foretune.search.factory import make_searcher, searcher_name
from foretune.search.loop import search
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.searcher import Prior
from foretune.search.stopping import Stopping
from foretune.space import Configuration

if TYPE_CHECKING:
    from foretune.search.factory import SearcherKind


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """What a searcher found in a recorded space.

    Attributes:
        space: the recorded space's name.
        searcher: its name.
        curves: optimum / best so far after n evaluations, shape (repeats, budget); zero before the
            first success, and constant once the whole space is measured.
        overhead_ms: milliseconds the searcher itself took (`ask` and `tell`) per evaluation, same
            shape; NaN where there was nothing left to ask for.
    """

    space: str
    searcher: str
    curves: np.ndarray
    overhead_ms: np.ndarray

    @property
    def budget(self) -> int:
        """Evaluations per repeat."""
        return self.curves.shape[1]

    @property
    def repeats(self) -> int:
        """Independent searches."""
        return self.curves.shape[0]


def replay(
    recorded: RecordedSpace,
    searcher: "SearcherKind",
    budget: int = 200,
    repeats: int = 20,
    seed: int = 0,
    prior: Prior | None = None,
    n_jobs: int = 1,
) -> ReplayResult:
    """Search ``recorded`` ``repeats`` times with ``budget`` evaluations each.

    A searcher sees a value only by asking for it, one configuration at a time; a failing
    configuration costs an evaluation like any other. The same seed gives the same curves; more
    repeats begin with the same ones.

    Args:
        recorded: what is searched.
        searcher: registered name, or a `Searcher` class or what else makes one; not a sampler of
            Optuna, whose random numbers would go on from repeat to repeat.
        budget: evaluations per repeat; a smaller space ends the search.
        repeats: independent searches.
        seed: all of them follow from it.
        prior: predictions of every configuration, for searchers that can use them.
        n_jobs: processes that share the repeats; -1 takes one per core.

    Raises:
        UsageError: no budget or no repeat.
        UnknownName: there is no such searcher.
    """
    if budget < 1 or repeats < 1:
        raise UsageError(f"budget {budget} and repeats {repeats}: give at least 1 of each")
    # Of the space too: else spaces of one size would be drawn alike. They fit 32 bits with a sign.
    whose = zlib.crc32(f"{recorded.kernel}/{recorded.device.name}/{recorded.problem}".encode())
    seeds = np.random.SeedSequence([seed, whose]).generate_state(repeats) >> 1

    def run_repeats(part: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        return [_search(recorded, searcher, budget, int(s), prior) for s in part]

    if n_jobs == 1:
        runs = run_repeats(seeds)
    else:
        from joblib import Parallel, cpu_count, delayed

        jobs = min(repeats, cpu_count() if n_jobs < 1 else n_jobs)
        parts = [seeds[i::jobs] for i in range(jobs)]  # the space travels once per process
        done = Parallel(n_jobs=jobs)(delayed(run_repeats)(part) for part in parts)
        runs = [done[i % jobs][i // jobs] for i in range(repeats)]
    curves, overheads = (np.array(rows) for rows in zip(*runs, strict=True))
    return ReplayResult(recorded.name, searcher_name(searcher), curves, overheads)


def _search(
    recorded: RecordedSpace,
    kind: "SearcherKind",
    budget: int,
    seed: int,
    prior: Prior | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return one repeat's curve and milliseconds per evaluation."""
    best, overhead_ms = np.full(budget, np.inf), np.full(budget, np.nan)
    searcher = make_searcher(
        kind, recorded.space, recorded.objective, seed, prior, recorded.problem, recorded.device
    )
    steps, searched_since = count(), time.perf_counter()

    def measure(configs: Sequence[Configuration]) -> list[Measurement]:
        nonlocal searched_since
        (config,), n = configs, next(steps)
        overhead_ms[n] = 1e3 * (time.perf_counter() - searched_since)
        number = recorded.space.index(config)
        best[n] = recorded.values[number]
        searched_since = time.perf_counter()
        return [recorded.measurement(number)]

    run(search(searcher, Stopping(min(budget, len(recorded)))), measure)
    return recorded.optimum / np.minimum.accumulate(best), overhead_ms
