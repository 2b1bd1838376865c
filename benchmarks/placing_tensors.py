"""Is placing tensors in memories a game worth learning? A policy beside greedy and HiGHS.

Graphs of operators with branches are drawn: every tensor has a size, a life (from the operator that
writes it to the last that reads it) and traffic. Two memories are fast and small, a third holds
everything. No memory may be over its room at any step. Policies (`foretune/PlaceTensors-v0`) learn
from other graphs. Printed: time of the traffic relative to the best of the mixed-integer program
(SciPy's HiGHS, 60 s), on graphs that no policy saw, small and large, and the largest share of the
fast memories in use.

    python benchmarks/placing_tensors.py [--graphs 12] [--seeds 2]
"""

import argparse
import time
from collections import defaultdict

import numpy as np
from machine import heading, markdown
from placement.tensors import TensorDecisions, TensorGraph

from foretune.collect import local_device
from foretune.search.policies.agent import Agent, TrainingSchedule, reinforce

SIZES = {"48 tensors": 48, "400 tensors": 400}
LEARNED = 200
"""Graphs of 24 to 48 tensors that policies learn from."""
WIDTH = 32
"""Placements of the beam search, of which the best counts: their cost is known without a run."""
SECONDS = 60.0


def main() -> None:
    """Train, place, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graphs", type=int, default=12, help="unseen graphs of each size")
    parser.add_argument("--seeds", type=int, default=2, help="policies")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    learned = TensorDecisions([drawn_graph(rng, int(rng.integers(24, 49))) for _ in range(LEARNED)])
    policies = [trained(learned, seed) for seed in range(options.seeds)]
    print(heading("Tensors in memories", local_device("cpu")))
    print(
        f"Time of the traffic relative to the program's, mean (worst) of {options.graphs} unseen "
        "graphs; largest share of the fast memories in use\n"
    )
    rows = []
    for size, tensors in SIZES.items():
        graphs = TensorDecisions([drawn_graph(rng, tensors) for _ in range(options.graphs)])
        rows += table_rows(size, graphs, policies)
    columns = ("graphs", "placed by", "time / program's", "in use", "seconds a graph", "proved")
    print(markdown(columns, rows))


def trained(learned: TensorDecisions, seed: int) -> Agent:
    """Return a policy that learned from graphs."""
    agent = Agent(learned, seed=seed)
    reinforce(agent, learned, TrainingSchedule(updates=150, tasks=16, hot=0.2, cold=0.005), seed)
    return agent


def table_rows(size: str, decisions: TensorDecisions, policies: list[Agent]) -> list[list[str]]:
    """Return a row for each way of placing."""
    found = defaultdict(list)
    for task, graph in enumerate(decisions.graphs):
        started = time.perf_counter()
        best, proved = graph.solve(SECONDS)
        program = np.inf if best is None else graph.total_ms(best[None])[0]
        found["HiGHS"].append((1.0, used(graph, best), time.perf_counter() - started, proved))
        started = time.perf_counter()
        greedy = graph.greedy()
        ratio = graph.total_ms(greedy[None])[0] / program
        found["greedy"].append((ratio, used(graph, greedy), time.perf_counter() - started, False))
        for agent in policies:
            started = time.perf_counter()
            for width, name in ((1, "policy"), (WIDTH, f"policy, best of {WIDTH}")):
                placed, _ = agent.beam_search(decisions, task, width)
                placed = placed[:, : decisions.length(task)]
                totals = graph.total_ms(placed)
                best_of = placed[totals.argmin()]
                found[name].append(
                    (
                        totals.min() / program,
                        used(graph, best_of),
                        time.perf_counter() - started,
                        False,
                    )
                )
    rows = []
    for name, values in found.items():
        ratio, share, seconds, proved = np.array(values, dtype=float).T
        proofs = f"{proved.sum():.0f} of {len(proved)}" if name == "HiGHS" else ""
        rows.append(
            [
                size,
                name,
                f"{ratio.mean():.3f} ({ratio.max():.3f})",
                f"{share.mean():.2f}",
                f"{seconds.mean():.2g}",
                proofs,
            ]
        )
    return rows


def used(graph: TensorGraph, placed: np.ndarray | None) -> float:
    """Return the largest share in use of the fast memories, mean over them."""
    if placed is None:
        return np.nan
    return float((1 - graph.free_mib(placed[None])[0].min(axis=1) / graph.rooms_mib).mean())


def drawn_graph(rng: np.random.Generator, tensors: int) -> TensorGraph:
    """Return a graph whose operators read the last tensors, and now and then a far earlier one."""
    first = np.arange(tensors)
    last = first + 1
    reads = np.ones(tensors)
    for operator in range(1, tensors):
        for _ in range(rng.integers(0, 3)):
            reach = operator if rng.random() < 0.2 else min(operator, 4)
            source = operator - 1 - int(rng.integers(0, reach))
            last[source] = max(last[source], operator)
            reads[source] += 1
    mib = np.exp(rng.normal(2.0, 1.2, tensors))
    moved = mib * (1 + reads) * rng.lognormal(0, 0.6, tensors)
    last = np.minimum(last, tensors - 1)
    life = np.array([mib[(first <= s) & (s <= last)].sum() for s in range(tensors)])
    rooms = np.array([0.15, 0.35]) * life.mean() * rng.uniform(0.6, 1.6, 2)
    return TensorGraph(mib, first, last, moved, rooms, np.array([1.0, 4.0, 16.0]) * 1e-3)


if __name__ == "__main__":
    main()
