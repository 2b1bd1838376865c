"""How many of the fastest measured configurations should be measured again before one is named?

    python benchmarks/finalists.py [--searches 300] [--process-noise 0.005]

A search measures configurations once, with a noise of 5 %, and one measurement in twenty is an
outlier of up to twice the time. Times are drawn: few configurations near the best one (sparse) or
many (dense). The fastest measured ones are compared by the product's own code, in simulated
processes; the ratio of two in one process has a noise of 0.5 % (a busy machine: 3 %). Regret is how
much slower the named configuration is than the fastest one that was measured.

Prints, by number of finalists, the mean and the 90 % quantile of the regret, and the number of
processes and of launches that they take; 0 finalists name the fastest measured one. "To the end" is
after twelve processes, even if one beat the default before. The number was chosen on the sparse
spaces.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from machine import heading, markdown

import foretune as ft
from foretune.collect import local_device
from foretune.collect.comparison import DEFAULT_REPEATED, Rounds
from foretune.tune.verifier import LOOKS, gather

NOISE = 0.05
OUTLIER_SHARE = 0.05
OUTLIER_FACTOR = 2.0
MEASURED = 30
DEFAULT_MS = 1.6
SHAPES = {"sparse": 1.0, "dense": 3.0}
"""Shape of the gamma distribution of the logarithm of times: a larger one is rarer near 0."""
FINALISTS = (0, 1, 2, 3, 5, 8)


def draw_times(space: str, rng: np.random.Generator) -> np.ndarray:
    """Return the true times of a search's configurations; the fastest possible one takes 1 ms."""
    gaps = rng.gamma(1.0 / SHAPES[space], 0.3, MEASURED)
    return np.exp(gaps)


def measured(times: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return what a search measures."""
    noisy = times * np.exp(rng.normal(0.0, NOISE, len(times)))
    is_outlier = rng.random(len(times)) < OUTLIER_SHARE
    return np.where(is_outlier, noisy * rng.uniform(1.0, OUTLIER_FACTOR, len(times)), noisy)


def name_one(
    times: np.ndarray,
    finalists: Sequence[int],
    rng: np.random.Generator,
    *,
    process_noise: float,
    looks: Mapping[int, float],
) -> tuple[int, int, int]:
    """Return the named configuration, the number of processes, and that of launches."""
    candidates = {str(i): ft.Configuration(i=int(i)) for i in finalists}
    launches = 0

    def session(keys: Sequence[str], seed: int) -> Rounds:
        nonlocal launches
        launches += 2 + len(keys)
        true_ms = {"default": DEFAULT_MS, DEFAULT_REPEATED: DEFAULT_MS}
        true_ms |= {key: float(times[int(key)]) for key in keys}
        drift = np.exp(rng.normal(0.0, NOISE))
        return Rounds(
            {
                key: np.array([ms * drift * np.exp(rng.normal(0.0, process_noise))])
                for key, ms in true_ms.items()
            }
        )

    evidence, compared = gather(session, "default", candidates, int(rng.integers(2**31)), looks)
    winners = [c for c in compared if c.wins and c.config is not None]
    if not winners:
        return int(finalists[0]), len(evidence), launches
    best = max(winners, key=lambda c: c.ratio)
    assert best.config is not None
    return int(best.config["i"]), len(evidence), launches


def row(
    space: str, count: int, *, to_the_end: bool = False, searches: int, process_noise: float
) -> list[str]:
    """Return the line of a table."""
    rng = np.random.default_rng(0)  # the same searches in all lines
    looks = {max(LOOKS): 1.0} if to_the_end else LOOKS
    regrets = []
    processes = []
    launches = []
    for _ in range(searches):
        times = draw_times(space, rng)
        ranked = np.argsort(measured(times, rng))
        named = int(ranked[0])
        used = 0
        launched = 0
        if count:
            named, used, launched = name_one(
                times, ranked[:count].tolist(), rng, process_noise=process_noise, looks=looks
            )
        regrets.append(times[named] / times.min() - 1.0)
        processes.append(used)
        launches.append(launched)
    return [
        space,
        f"{count}, to the end" if to_the_end else f"{count}",
        f"{100 * np.mean(regrets):.2f} %",
        f"{100 * np.quantile(regrets, 0.9):.2f} %",
        f"{np.mean(processes):.1f}",
        f"{np.mean(launches):.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--searches", type=int, default=300)
    parser.add_argument("--process-noise", type=float, default=0.005)
    options = parser.parse_args()
    rows = []
    for space in SHAPES:
        in_space = partial(
            row, space, searches=options.searches, process_noise=options.process_noise
        )
        rows += [in_space(count) for count in FINALISTS]
        rows += [in_space(count, to_the_end=True) for count in (3, 5)]
    print(heading("How many finalists", local_device("cpu")))
    columns = ["space", "finalists", "regret: mean", "90 % quantile", "processes", "launches"]
    print(markdown(columns, rows))


if __name__ == "__main__":
    main()
