"""Searches propose what they proposed before.

`search_traces.json` holds the numbers of the proposed configurations, in order. There are two kinds
of traces:

- Replays: 3 spaces, 3 searchers, 3 seeds.
- Paths that these do not take: the decorator's ordered search, the sampler in Optuna's studies,
  batches, measurements of other problems, constraints, several objectives.

The traces are the same with the oldest supported and the newest libraries, and with the BLAS code
of several CPUs, because the spaces have no two configurations alike. A change that is meant to
propose something else writes new traces and prints what share of the optimum they find::

    PYTHONPATH=tests/toy python tests/golden/test_search_traces.py --write
"""

import argparse
import itertools
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import analytic_spaces
import numpy as np
import optuna
import pandas as pd
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import Trial, TrialState
from recorded_runner import RecordedKernel, RecordedRunner

import foretune
from foretune import Configuration, Measurement, Problem
from foretune.measurement import Status
from foretune.search import SurrogateSampler
from foretune.search.ordered import OrderedSearcher
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.replay.replay import replay
from foretune.search.searcher import Searcher
from foretune.search.stopping import Stopping
from foretune.search.surrogate import SurrogateSearcher

TRACES = Path(__file__).with_name("search_traces.json")
EVALUATIONS = 30
SPACES = {
    "tiled_gemm": analytic_spaces.tiled_gemm(),
    "categorical": analytic_spaces.categorical(),
    "stencil": analytic_spaces.stencil(),
}
PRIORS = {"stencil": analytic_spaces.stencil_prior(SPACES["stencil"])}
SEARCHERS = ("surrogate", "tpe", "random")
REPLAYS = [" ".join(name) for name in itertools.product(SPACES, SEARCHERS, "012")]

OTHER_PROBLEM_STRIDE = 17
"""Every n-th configuration of a space was also measured on another problem."""
SHARED_MEMORY = 12 * 1024
"""Bytes that the constraint of a study allows; about half of the GEMMs that run need more."""
LARGEST = 64
"""Largest value of the three integers of a study with too many configurations to list."""


class Noting:
    """A searcher that notes what it proposes."""

    uses_prior = True

    def __init__(self, searcher: Any) -> None:
        self._searcher = searcher
        self.proposed: list[int] = []

    def ask(self, n: int = 1) -> list[foretune.Configuration]:
        configs: list[foretune.Configuration] = self._searcher.ask(n)
        self.proposed += map(self._searcher.space.index, configs)
        return configs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._searcher, name)


def replay_trace(name: str) -> list[int]:
    """Return the configuration numbers that a replayed search proposes, in order."""
    space, kind, seed = name.split()
    searchers: list[Noting] = []

    def make(of: Any, objective: Any, _: int, *others: Any) -> Noting:
        searchers.append(Noting(foretune.make_searcher(kind, of, objective, int(seed), *others)))
        return searchers[-1]

    replay(SPACES[space], make, EVALUATIONS, repeats=1, prior=PRIORS.get(space))
    (searcher,) = searchers
    return searcher.proposed


def search_trace(
    searcher_class: type[Searcher],
    name: str,
    *,
    batch: int = 1,
    with_other_problem: bool = False,
    regret: float | None = None,
) -> list[int]:
    """Return what a searcher proposes in a space, ``batch`` configurations at a time.

    It ends after `EVALUATIONS`, or when the expected regret is below ``regret``.
    """
    recorded = SPACES[name]
    searcher = searcher_class(
        recorded.space,
        recorded.objective,
        seed=0,
        prior=PRIORS.get(name),
        problem=recorded.problem,
        device=recorded.device,
        other_measurements=other_problem(recorded) if with_other_problem else (),
    )
    stopping = Stopping(EVALUATIONS, regret=regret)
    proposed: list[int] = []
    while stopping.reason(searcher, len(proposed)) is None:
        numbers = [recorded.space.index(config) for config in searcher.ask(batch)]
        proposed += numbers
        searcher.tell([recorded.measurements[number] for number in numbers])
    return proposed


def other_problem(recorded: RecordedSpace) -> list[Measurement]:
    """Return measurements of a problem twice as large, with another best configuration."""
    problem = Problem({name: 2 * size for name, size in recorded.problem.items()})
    measurements = []
    for number in range(0, len(recorded), OTHER_PROBLEM_STRIDE):
        here = recorded.measurements[number]
        time_ms = math.nan
        if here.status is Status.OK:
            time_ms = 4.0 * here.time_ms ** (1.0 + 0.001 * number)
        measurements.append(
            Measurement(
                here.kernel, problem, here.config, here.device, status=here.status, time_ms=time_ms
            )
        )
    return measurements


class StencilGuide:
    """A user's model of the stencil: the times of its prior."""

    def predict_space(
        self, problem: Any, space: Any, device: Any, indices: np.ndarray | None = None
    ) -> pd.DataFrame:
        configs = list(space) if indices is None else [space[int(i)] for i in indices]
        numbers = [SPACES["stencil"].space.index(config) for config in configs]
        prior = PRIORS["stencil"]
        return pd.DataFrame(
            {"time_ms": np.exp(prior.log_mean[numbers]), "p_valid": prior.p_valid[numbers]}
        )


class BowlGuide:
    """A user's model of `bowl_ms` that misplaces its minimum."""

    def predict_space(
        self, problem: Any, space: Any, device: Any, indices: np.ndarray | None = None
    ) -> pd.DataFrame:
        configs = list(space) if indices is None else [space[int(i)] for i in indices]
        return pd.DataFrame(
            {"time_ms": [bowl_ms(config, minimum=(16, 8, 40)) for config in configs]}
        )


def bowl_ms(params: Any, minimum: tuple[int, int, int] = (20, 5, 33)) -> float:
    """Return a time that grows with the distance from a minimum, in octaves."""
    pairs = zip(params.values(), minimum, strict=True)
    octaves = [abs(math.log2(value / best)) for value, best in pairs]
    weights = (1.0, 0.7, 0.4)
    return math.exp(sum(w * o**1.5 for w, o in zip(weights, octaves, strict=True)))


def study_trace(
    name: str, *, seed: int = 0, batch: int = 1, constrained: bool = False, **options: Any
) -> list[int]:
    """Return what the sampler suggests for a recorded space; what does not run fails."""
    recorded = SPACES[name]
    choices = {n: CategoricalDistribution(v) for n, v in recorded.space.parameters.items()}
    sampler = SurrogateSampler(seed=seed, search_space=choices, **options)
    study = optuna.create_study(sampler=sampler)
    proposed: list[int] = []
    while len(proposed) < EVALUATIONS:
        trials = [study.ask(choices) for _ in range(batch)]
        for trial in trials:
            number = recorded.space.index(Configuration(trial.params))
            proposed.append(number)
            if constrained:
                trial.set_constraint("shared memory", used_shared_memory(trial) - SHARED_MEMORY)
            if np.isfinite(recorded.values[number]):
                study.tell(trial, recorded.values[number])
            else:
                study.tell(trial, state=TrialState.FAIL)
    return proposed


def used_shared_memory(trial: Trial) -> float:
    """Return the bytes of shared memory of a GEMM's tiles."""
    tile = trial.params
    return 2 * tile["num_stages"] * tile["BLOCK_K"] * (tile["BLOCK_M"] + tile["BLOCK_N"])


def large_study_trace(*, two_objectives: bool = False, **options: Any) -> list[int]:
    """Return what the sampler suggests for three integers: too many configurations to list."""
    integers = {name: IntDistribution(1, LARGEST, log=name == "x") for name in "xyz"}
    sampler = SurrogateSampler(seed=0, search_space=integers, **options)
    directions = ["minimize", "minimize"] if two_objectives else ["minimize"]
    study = optuna.create_study(sampler=sampler, directions=directions)
    suggested: list[int] = []
    for _ in range(EVALUATIONS):
        trial = study.ask(integers)
        suggested += trial.params.values()
        values = [bowl_ms(trial.params)]
        if two_objectives:
            values.append(bowl_ms(trial.params, minimum=(40, 9, 12)))
        study.tell(trial, values)
    return suggested


OTHER_TRACES: dict[str, Callable[[], list[int]]] = {
    "tiled_gemm surrogate in batches": partial(
        search_trace, SurrogateSearcher, "tiled_gemm", batch=5
    ),
    "stencil surrogate in batches": partial(search_trace, SurrogateSearcher, "stencil", batch=5),
    "tiled_gemm surrogate, another problem": partial(
        search_trace, SurrogateSearcher, "tiled_gemm", with_other_problem=True
    ),
    "stencil surrogate, another problem": partial(
        search_trace, SurrogateSearcher, "stencil", with_other_problem=True
    ),
    "tiled_gemm ordered": partial(search_trace, OrderedSearcher, "tiled_gemm"),
    "categorical ordered": partial(search_trace, OrderedSearcher, "categorical", batch=3),
    "stencil ordered": partial(search_trace, OrderedSearcher, "stencil"),
    "stencil ordered until sure": partial(search_trace, OrderedSearcher, "stencil", regret=0.03),
    "tiled_gemm ordered, another problem": partial(
        search_trace, OrderedSearcher, "tiled_gemm", with_other_problem=True
    ),
    "stencil ordered, another problem": partial(
        search_trace, OrderedSearcher, "stencil", with_other_problem=True
    ),
    "tiled_gemm sampler 0": partial(study_trace, "tiled_gemm", seed=0),
    "tiled_gemm sampler 1": partial(study_trace, "tiled_gemm", seed=1),
    "categorical sampler 0": partial(study_trace, "categorical", seed=0),
    "categorical sampler in batches": partial(study_trace, "categorical", batch=3),
    "tiled_gemm sampler, constraint": partial(study_trace, "tiled_gemm", batch=2, constrained=True),
    "stencil sampler, predictor": partial(
        study_trace, "stencil", predictor=StencilGuide(), problem={"n": 2048}
    ),
    "bowl sampler": large_study_trace,
    "bowl sampler, predictor": partial(large_study_trace, predictor=BowlGuide(), problem={"n": 1}),
    "bowl sampler, two objectives": partial(large_study_trace, two_objectives=True),
}
NAMES = [*REPLAYS, *OTHER_TRACES]


def trace_of(name: str) -> list[int]:
    """Return the trace of this name, made anew."""
    if name in OTHER_TRACES:
        return OTHER_TRACES[name]()
    return replay_trace(name)


def share_of(space: RecordedSpace, numbers: Sequence[int]) -> float:
    """Return the optimum as a share of the best time found."""
    return space.optimum / min(math.inf, *space.values[list(numbers)])


@pytest.fixture(scope="module")
def kept() -> dict[str, list[int]]:
    traces: dict[str, list[int]] = json.loads(TRACES.read_text(encoding="utf-8"))
    return traces


@pytest.fixture(autouse=True)
def _quiet_optuna():
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.mark.parametrize("name", NAMES)
def test_search_proposes_the_same_as_before(name, kept):
    assert trace_of(name) == kept[name]


@pytest.mark.parametrize("name", [n for n in REPLAYS if n.endswith("0") and "stencil" not in n])
def test_tuner_proposes_the_same_as_replay(name, kept):
    space, kind, seed = name.split()
    runner = RecordedRunner(SPACES[space])

    foretune.tune_problem(
        RecordedKernel(SPACES[space]),
        SPACES[space].problem,
        runner,
        store=False,
        budget=EVALUATIONS,
        searcher=kind,
        seed=int(seed),
    )

    assert runner.measured == kept[name]


def test_traces_file_has_no_other_names(kept):
    assert list(kept) == NAMES


def write() -> None:
    """Write the traces of this tree, and print what changed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    before = json.loads(TRACES.read_text(encoding="utf-8")) if TRACES.exists() else {}
    now = {name: trace_of(name) for name in NAMES}

    changed = [name for name in NAMES if name in before and before[name] != now[name]]
    for name in changed:
        space = SPACES.get(name.split()[0])
        if space is None:
            print(f"{name}: changed")
        else:
            share_before = share_of(space, before[name])
            share_now = share_of(space, now[name])
            print(f"{name}: {share_before:.4f} of the optimum before, {share_now:.4f} now")

    lines = (f"{json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in now.items())
    TRACES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    write()
