"""Searches propose what they proposed before: 3 spaces, 3 searchers, 3 seeds, 30 evaluations.

`search_traces.json` holds the configuration numbers of every trace. They are the same with the
oldest supported and the newest libraries, and with the BLAS code of several CPUs: the spaces have
no two configurations alike. A change that is meant to propose differently writes new ones and
prints what that does to the optimum's share::

    PYTHONPATH=tests/toy python tests/golden/test_search_traces.py --write
"""

import argparse
import itertools
import json
import math
import statistics
from pathlib import Path
from typing import Any

import analytic_spaces
import pytest
from recorded_runner import RecordedKernel, RecordedRunner

import foretune
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.replay.replay import replay

TRACES = Path(__file__).with_name("search_traces.json")
EVALUATIONS = 30
SPACES = {
    "tiled_gemm": analytic_spaces.tiled_gemm(),
    "categorical": analytic_spaces.categorical(),
    "stencil": analytic_spaces.stencil(),
}
PRIORS = {"stencil": analytic_spaces.stencil_prior(SPACES["stencil"])}
SEARCHERS = ("surrogate", "tpe", "random")
NAMES = [" ".join(name) for name in itertools.product(SPACES, SEARCHERS, "012")]


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


def trace_of(name: str) -> list[int]:
    """Return the configuration numbers that a replayed search proposes, in order."""
    space, kind, seed = name.split()
    searchers: list[Noting] = []

    def make(of: Any, objective: Any, _: int, *others: Any) -> Noting:
        searchers.append(Noting(foretune.make_searcher(kind, of, objective, int(seed), *others)))
        return searchers[-1]

    replay(SPACES[space], make, EVALUATIONS, repeats=1, prior=PRIORS.get(space))
    (searcher,) = searchers
    return searcher.proposed


def share_of(space: RecordedSpace, numbers: list[int]) -> float:
    """Return the optimum as a share of the best time found."""
    return space.optimum / min(math.inf, *space.values[numbers])


@pytest.fixture(scope="module")
def kept() -> dict[str, list[int]]:
    traces: dict[str, list[int]] = json.loads(TRACES.read_text(encoding="utf-8"))
    return traces


@pytest.mark.parametrize("name", NAMES)
def test_a_replayed_search_proposes_the_same(name, kept):
    assert trace_of(name) == kept[name]


@pytest.mark.parametrize("name", [n for n in NAMES if n.endswith("0") and "stencil" not in n])
def test_the_tuner_proposes_the_same(name, kept):
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


def test_no_other_traces_are_kept(kept):
    assert list(kept) == NAMES


def write() -> None:
    """Write the traces of this tree, and print what share of the optimum they reach."""
    before = json.loads(TRACES.read_text(encoding="utf-8")) if TRACES.exists() else {}
    now = {name: trace_of(name) for name in NAMES}
    for title, traces in (("before", before), ("now", now)):
        if traces:
            shares = [
                share_of(SPACES[name.split()[0]], numbers) for name, numbers in traces.items()
            ]
            print(f"{title}: mean share of the optimum {statistics.mean(shares):.4f}")
    lines = (f"{json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in now.items())
    TRACES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    write()
