"""Tensors in memories: what may be placed where, and how well."""

from itertools import product

import numpy as np
import pytest
from placement.tensors import TensorDecisions, TensorGraph


def graph(rng: np.random.Generator, tensors: int = 6) -> TensorGraph:
    first = np.arange(tensors)
    last = np.minimum(first + rng.integers(0, 4, tensors), tensors - 1)
    mib = rng.integers(1, 6, tensors).astype(float)
    moved = mib * rng.uniform(1, 4, tensors)
    return TensorGraph(mib, first, last, moved, np.array([4.0, 7.0]), np.array([1.0, 3.0, 9.0]))


def within_rooms(g: TensorGraph, placed: tuple[int, ...]) -> bool:
    """Whether no memory is over its room at any step, step by step."""
    memory_of = dict(zip(g.order.tolist(), placed, strict=True))
    for memory, room in enumerate(g.rooms_mib):
        for step in range(g.last.max() + 1):
            here = [
                g.mib[t]
                for t, m in memory_of.items()
                if m == memory and g.first[t] <= step <= g.last[t]
            ]
            if sum(here) > room:
                return False
    return True


@pytest.mark.parametrize("seed", range(5))
def test_the_program_finds_the_best_legal_placement(seed):
    g = graph(np.random.default_rng(seed))
    legal = [p for p in product(range(3), repeat=6) if within_rooms(g, p)]
    best = min(g.total_ms(np.array([p]))[0] for p in legal)
    found, proved = g.solve(10.0)
    assert proved
    assert within_rooms(g, tuple(found))
    assert g.total_ms(found[None])[0] == pytest.approx(best, rel=1e-3)
    greedy = g.greedy()
    assert within_rooms(g, tuple(greedy))
    assert g.total_ms(greedy[None])[0] >= best


@pytest.mark.parametrize("seed", range(3))
def test_legal_choices_are_those_that_keep_to_the_rooms(seed):
    g = graph(np.random.default_rng(seed))
    decisions, tasks = TensorDecisions([g]), np.zeros(1, dtype=int)
    ends = [()]
    for _ in range(6):
        ends = [
            (*end, int(choice))
            for end in ends
            for choice in np.flatnonzero(
                decisions.legal(tasks, np.array([end], dtype=int).reshape(1, -1))[0]
            )
        ]
    assert set(ends) == {p for p in product(range(3), repeat=6) if within_rooms(g, p)}
    rewards = decisions.reward(np.zeros(len(ends), dtype=int), np.array(ends))
    greedy = ends.index(tuple(g.greedy().tolist()))
    assert rewards[greedy] == pytest.approx(0.0, abs=1e-12)


def test_gymnasium_finds_nothing_to_object_to():
    gymnasium = pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    graphs = [graph(np.random.default_rng(seed), 4 + seed) for seed in range(3)]
    env = gymnasium.make("placement.environment:foretune/PlaceTensors-v0", graphs=graphs)
    check_env(env.unwrapped, skip_render_check=True)
