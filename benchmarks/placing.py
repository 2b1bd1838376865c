"""What is reinforcement learning worth where a search cannot enumerate? Placing operators.

Chains of operators run on two devices in three formats each, 6^16 to 6^24 placements (2.8e12 to
4.7e18). Formats cost accuracy, whose sum is limited; a change of device or format takes time. Every
way to place sees the same predictions, which are off by 15 % (the standard deviation of the
logarithm), and may measure a few complete placements. Printed: the share of the optimum, mean and
worst over unseen chains, of the best placement measured.

    python benchmarks/placing.py [--chains 20] [--seeds 3]

The cost of a chain is a sum, so that its optimum is known exactly by dynamic programming: that is
how the shares are found, and the same on the predictions is what learning has to beat.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import optuna
from machine import heading, markdown
from placement.decisions import Placement, PlacementDecisions

from foretune.collect import local_device
from foretune.search.policies.agent import Agent, TrainingSchedule, reinforce

DEVICES, FORMATS = 2, 3
OFF = 0.15
"""Standard deviation of the logarithm of measured over predicted latency."""
BUDGETS = (1, 16, 64, 256)
LEARNED = 200
"""Chains that policies learn from."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chains", type=int, default=20, help="unseen chains")
    parser.add_argument("--seeds", type=int, default=3, help="policies, and searches per chain")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rng = np.random.default_rng(0)
    learned = PlacementDecisions([chain(rng) for _ in range(LEARNED)])
    predicted = PlacementDecisions([chain(rng) for _ in range(options.chains)])
    true = [measured(p, rng) for p in predicted.placements]
    shares: dict[str, list[np.ndarray]] = defaultdict(list)
    for seed in range(options.seeds):
        started = time.perf_counter()
        agent = Agent(learned, seed=seed)
        reinforce(agent, learned, TrainingSchedule(updates=200, tasks=16, hot=0.2, cold=0.02), seed)
        print(f"policy {seed} learned in {time.perf_counter() - started:.0f} s", flush=True)
        for task, truth in enumerate(true):
            optimum = truth.total_ms(truth.optimum()[None, :])[0]
            for name, proposals in ways(agent, predicted, task, seed).items():
                best, totals = np.inf, []
                told: list[float] = []
                for placed in proposals(told):
                    total = truth.total_ms(placed[None, :])[0] if legal(truth, placed) else np.inf
                    told.append(total)
                    best = min(best, total)
                    totals.append(optimum / best)
                    if len(totals) == BUDGETS[-1]:
                        break
                curve = np.array(totals + totals[-1:] * (BUDGETS[-1] - len(totals)))
                shares[name].append(curve[np.array(BUDGETS) - 1])
    print(heading("Placement", local_device("cpu")))
    print(
        f"Share of the optimum of {options.chains} unseen chains of 16 to 24 operators, "
        f"{options.seeds} policies or searches each: mean (worst) of the best of so many measured\n"
    )
    columns = ["placed by", *(f"{n} measured" for n in BUDGETS)]
    rows = []
    for name, found in shares.items():
        each = np.array(found)
        rows.append(
            [name, *(f"{m:.3f} ({w:.3f})" for m, w in zip(each.mean(0), each.min(0), strict=True))]
        )
    print(markdown(columns, rows))


Proposals = Callable[[list[float]], Iterator[np.ndarray]]
"""Yields placements to measure; is told what all before took, infinite if they broke the limit."""


def ways(agent: Agent, placing: PlacementDecisions, task: int, seed: int) -> dict[str, Proposals]:
    """Return every way to place one chain."""
    predicted = placing.placements[task]
    operators = placing.length(task)

    def policy(told: list[float]) -> Iterator[np.ndarray]:
        likeliest, _ = agent.beam_search(placing, task, BUDGETS[-1])
        yield from likeliest[:, :operators]

    def policy_by_prediction(told: list[float]) -> Iterator[np.ndarray]:
        likeliest, _ = agent.beam_search(placing, task, BUDGETS[-1])
        placed = likeliest[:, :operators]
        yield from placed[np.argsort(predicted.total_ms(placed), kind="stable")]

    def greedy(told: list[float]) -> Iterator[np.ndarray]:
        yield predicted.greedy()

    def exact(told: list[float]) -> Iterator[np.ndarray]:
        yield predicted.optimum()

    def random(told: list[float]) -> Iterator[np.ndarray]:
        rng = np.random.default_rng(seed)
        while True:
            yield drawn(predicted, rng)

    def tpe(start: list[np.ndarray]) -> Proposals:
        def propose(told: list[float]) -> Iterator[np.ndarray]:
            yield from _tpe(predicted, told, start, seed)

        return propose

    return {
        "random, legal": random,
        "cheapest legal choice every time": greedy,
        "Optuna's TPE": tpe([]),
        "Optuna's TPE from that": tpe([predicted.greedy()]),
        "policy, likeliest first": policy,
        "policy, its 256 likeliest, best predicted first": policy_by_prediction,
        "dynamic programming on the predictions": exact,
        "Optuna's TPE from that optimum": tpe([predicted.optimum()]),
    }


def _tpe(
    predicted: Placement, told: list[float], start: list[np.ndarray], seed: int
) -> Iterator[np.ndarray]:
    operators, choices = predicted.latency_ms.shape
    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True)
    study = optuna.create_study(sampler=sampler)
    for placed in start:
        study.enqueue_trial({str(i): int(c) for i, c in enumerate(placed)})
    while True:
        trial = study.ask()
        yield np.array(
            [trial.suggest_categorical(str(i), range(choices)) for i in range(operators)]
        )
        if np.isfinite(told[-1]):
            study.tell(trial, told[-1])
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)


def chain(rng: np.random.Generator) -> Placement:
    """Return operators of very different sizes on two devices in three formats."""
    operators = int(rng.integers(16, 25))
    size = rng.lognormal(0, 1, (operators, 1, 1))
    speed = np.array([1.0, 0.55, 0.35]) * rng.uniform(0.6, 1.6, (1, DEVICES, 1))
    latency_ms = size * speed * rng.lognormal(0, 0.3, (operators, DEVICES, FORMATS))
    lost = np.array([0.0, 0.3, 1.0]) * rng.lognormal(0, 0.7, (operators, 1, 1))
    lost = np.broadcast_to(lost, latency_ms.shape).reshape(operators, -1)
    device, form = np.divmod(np.arange(DEVICES * FORMATS), FORMATS)
    moved = rng.uniform(0.3, 1.0) * (device[:, None] != device) + rng.uniform(0.05, 0.3) * (
        form[:, None] != form
    )
    return Placement(
        latency_ms.reshape(operators, -1), moved, lost, rng.uniform(0.2, 0.8) * lost.max(1).sum()
    )


def measured(predicted: Placement, rng: np.random.Generator) -> Placement:
    """Return a chain as it really is."""
    off = rng.lognormal(0, OFF, predicted.latency_ms.shape)
    return Placement(
        predicted.latency_ms * off, predicted.transfer_ms, predicted.use, predicted.limit
    )


def legal(placement: Placement, placed: np.ndarray) -> bool:
    """Return whether a placement keeps the limit."""
    return bool(placement.fits(placement.use[np.arange(len(placed)), placed].sum()))


def drawn(placement: Placement, rng: np.random.Generator) -> np.ndarray:
    """Return a placement that is legal, every choice as likely among those that can still be."""
    placed: list[int] = []
    spent = 0.0
    for operator, use in enumerate(placement.use):
        fits = placement.fits(spent + use + placement.min_remaining_use[operator + 1])
        placed.append(int(rng.choice(np.flatnonzero(fits))))
        spent += use[placed[-1]]
    return np.array(placed)


if __name__ == "__main__":
    main()
