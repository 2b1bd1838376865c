"""Replay: repeated searches of a recorded space, and the priors they start from."""

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import pandas as pd

from foretune.datasets.runs import problems_of
from foretune.device import canonical_name
from foretune.errors import PredictorError, UsageError
from foretune.measurement import Measurement
from foretune.models.guides.guide import SpacePredictor, make_guide
from foretune.models.guides.request import PredictorRequest
from foretune.models.predictor import Predictor
from foretune.search.factory import SearcherKind, make_searcher, searcher_name
from foretune.search.loop import run, search
from foretune.search.prior import prior_from_guide
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.searcher import Prior
from foretune.search.stopping import Stopping
from foretune.space import Configuration


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """Result of replaying one searcher on one recorded space.

    ``curves``: optimum / best so far after n evaluations, shape (repeats, budget); zero before the
    first success, constant after the last evaluation. ``overhead_ms``: the searcher's own
    milliseconds (`tell` and `ask`) before each evaluation, same shape; NaN after the last one.
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


@dataclass(frozen=True)
class _Repeat:
    """One repeat of a replay; one value per evaluation, see `ReplayResult`."""

    curve: np.ndarray
    overhead_ms: np.ndarray


@dataclass(frozen=True)
class ReplayPrior:
    """The prior of a replay, and the devices, or the user's model, that it comes from.

    ``prior`` is None and ``sources`` is empty if the replay starts without one.
    """

    prior: Prior | None
    sources: list[str]


def replay(
    recorded: RecordedSpace,
    searcher: SearcherKind,
    budget: int = 200,
    repeats: int = 20,
    seed: int = 0,
    prior: Prior | None = None,
    n_jobs: int = 1,
) -> ReplayResult:
    """Search ``recorded`` ``repeats`` times with ``budget`` evaluations each.

    Configurations are evaluated one at a time, and failures count. The same seed gives the same
    curves; more repeats only add curves. ``searcher`` is a registered name, or a `Searcher` class
    or factory; no Optuna sampler, whose random state would carry over between repeats. The budget
    is at most the size of the space; ``prior`` predicts every configuration; ``n_jobs`` is a number
    of processes, -1 one per core. Raises UsageError if budget or repeats are below 1; UnknownName
    if there is no searcher of this name.
    """
    if budget < 1 or repeats < 1:
        raise UsageError(f"budget {budget} and repeats {repeats}: give at least 1 of each")
    seeds = _seeds(recorded, seed, repeats)

    def run_repeats(part: np.ndarray) -> list[_Repeat]:
        return [_search(recorded, searcher, budget, int(s), prior) for s in part]

    if n_jobs == 1:
        runs = run_repeats(seeds)
    else:
        from joblib import Parallel, cpu_count, delayed

        # The space travels once per process: process j gets every repeat whose number modulo the
        # number of processes is j.
        jobs = min(repeats, cpu_count() if n_jobs < 1 else n_jobs)
        parts = [seeds[i::jobs] for i in range(jobs)]
        runs_of_parts = Parallel(n_jobs=jobs)(delayed(run_repeats)(part) for part in parts)
        runs = [runs_of_parts[i % jobs][i // jobs] for i in range(repeats)]

    return ReplayResult(
        recorded.name,
        searcher_name(searcher),
        curves=np.array([run.curve for run in runs]),
        overhead_ms=np.array([run.overhead_ms for run in runs]),
    )


def _seeds(recorded: RecordedSpace, seed: int, repeats: int) -> np.ndarray:
    """Return one seed per repeat; they fit 32 bits with a sign."""
    # They depend on the space, because otherwise spaces of one size would be drawn alike.
    identity = f"{recorded.kernel}/{recorded.device.name}/{recorded.problem}"
    sequence = np.random.SeedSequence([seed, zlib.crc32(identity.encode())])
    return sequence.generate_state(repeats) >> 1


def _search(
    recorded: RecordedSpace, kind: SearcherKind, budget: int, seed: int, prior: Prior | None
) -> _Repeat:
    """Search the space once."""
    values = np.full(budget, np.inf)  # objective of each evaluation
    overhead_ms = np.full(budget, np.nan)
    searcher = make_searcher(
        kind,
        recorded.space,
        objective=recorded.objective,
        seed=seed,
        prior=prior,
        problem=recorded.problem,
        device=recorded.device,
    )
    steps = count()
    searched_since = time.perf_counter()

    def measure(configs: Sequence[Configuration]) -> list[Measurement]:
        nonlocal searched_since
        n = next(steps)
        overhead_ms[n] = 1e3 * (time.perf_counter() - searched_since)
        (config,) = configs
        number = recorded.space.index(config)
        values[n] = recorded.values[number]
        searched_since = time.perf_counter()
        return [recorded.measurements[number]]

    run(search(searcher, Stopping(min(budget, len(recorded)))), measure)
    best_so_far = np.minimum.accumulate(values)
    return _Repeat(curve=recorded.optimum / best_so_far, overhead_ms=overhead_ms)


def runs_on_other_devices(runs: pd.DataFrame, recorded: RecordedSpace) -> pd.DataFrame:
    """Return the rows of ``recorded``'s kernel on other devices.

    Rows of its device are left out for all problems. Raises PredictorError if there are none.
    """
    here = canonical_name(recorded.device.name)
    names = {name: canonical_name(str(name)) for name in runs["device"].unique()}
    is_other_device = runs["device"].map(names).astype(object) != here
    rows = runs[(runs["kernel"] == recorded.kernel) & is_other_device].dropna(axis=1, how="all")
    if rows.empty:
        raise PredictorError(
            f"no prior for {recorded.name}: the runs have none of {recorded.kernel} on a "
            f"device other than {here}"
        )
    return rows.reset_index(drop=True)


def check_prior_source(
    source: SpacePredictor | pd.DataFrame | None, recorded: RecordedSpace
) -> None:
    """Raise if `prior_from_source` cannot return a fair prior of ``recorded``.

    Raises PredictorError if there are no runs of other devices, or the predictor is of another
    kernel or was trained on the space itself, which a user's model does not show.
    """
    if source is None:
        return
    if isinstance(source, pd.DataFrame):
        runs_on_other_devices(source, recorded)
        return

    guide = make_guide(source, recorded.device)
    guide.require(
        PredictorRequest(
            recorded.kernel,
            source_hash="",
            device=recorded.device,
            needs_power=recorded.objective.needs_power,
        )
    )
    runs = guide.training_runs()
    here = canonical_name(recorded.device.name)
    is_here = np.array([canonical_name(str(name)) == here for name in runs["device"]], dtype=bool)
    if recorded.problem in set(problems_of(runs[is_here])):
        raise PredictorError(
            f"the predictor was trained on {recorded.name}: replay spaces that it has not seen"
        )


def prior_from_source(
    source: SpacePredictor | pd.DataFrame | None, recorded: RecordedSpace, seed: int = 0
) -> ReplayPrior:
    """Return the prior of a model, or of a predictor trained on runs of other devices.

    Raises PredictorError: see `check_prior_source`; or there are too few runs.
    """
    if source is None:
        return ReplayPrior(prior=None, sources=[])
    if isinstance(source, pd.DataFrame):
        source = Predictor(seed=seed).fit(runs_on_other_devices(source, recorded))
    guide = make_guide(source, recorded.device)
    prior = prior_from_guide(guide, recorded.problem, recorded.space, recorded.objective)
    devices = sorted(set(guide.training_runs()["device"].astype(str)))
    return ReplayPrior(prior, sources=devices or [str(guide)])
