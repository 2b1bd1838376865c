"""Checks the contract of a searcher: no duplicates, all in the space, deterministic per seed."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from foretune.errors import SpaceError
from foretune.measurement import Measurement, Status
from foretune.objective import Objective, Scalarization
from foretune.problem import Problem
from foretune.search.factory import make_searcher
from foretune.search.loop import run, search
from foretune.search.searcher import Prior, Searcher
from foretune.search.stopping import Stopping
from foretune.space import Configuration, SearchSpace
from foretune.testing.contract import ContractViolation, ensure
from foretune.values import Value

SPACE = SearchSpace(
    {
        "tile": (1, 2, 4, 8, 16),
        "unroll": (1, 2, 4),
        "order": ("ij", "ji"),
        "pack": (False, True),
        "split": ("auto", 1, 2),
    },
    ["tile * unroll <= 32", "split != 'auto' or tile > 1"],
)
SMALL = SearchSpace(SPACE.parameters, ["tile in (4, 8, 16)", "unroll < 4", "split != 1"])
TINY = SearchSpace({"tile": (1, 2), "pack": (False, True)}, ["tile == 1 or pack"])
ONE_CONFIGURATION = SearchSpace({"tile": (1,)})
NO_PARAMETERS = SearchSpace({})

Time = Callable[[Configuration], float]
Test = Callable[[Configuration], bool]
Kind = str | Callable[..., Searcher]


def time_ms(config: Configuration) -> float:
    """Return a time with its minimum at tile 8, unroll 2, ji, packed, split 2."""
    tile, unroll = (math.log2(float(config[name])) for name in ("tile", "unroll"))
    slow = 1.3 ** abs(tile - 3) * 1.2 ** abs(unroll - 1)
    slow *= 1.0 if config["order"] == "ji" else 1.25
    slow *= 1.0 if config["pack"] else 1.15
    return slow * {"auto": 1.1, 1: 1.2, 2: 1.0}[config["split"]]


def fails(config: Configuration) -> bool:
    """Return whether a configuration of `SPACE` cannot run."""
    return bool(config["tile"] == 16 and config["pack"])


def never_fails(config: Configuration) -> bool:
    """Return that a configuration runs."""
    return False


def make_measurement(
    config: Configuration, time_of: Time = time_ms, is_broken: Test = fails, watts: float = math.nan
) -> Measurement:
    """Return the measurement a runner would make."""
    common = ("probe", Problem(n=1), config, "made up")
    if is_broken(config):
        return Measurement(*common, Status.RUNTIME_ERROR)
    return Measurement(*common, Status.OK, time_ms=time_of(config), power_w=watts)


def make_prior(space: SearchSpace, time_of: Time = time_ms, sigma: float = 0.05) -> Prior:
    """Return a prior with mean ``time_of`` that knows which configurations fail."""
    mean = np.log([time_of(config) for config in space])
    return Prior(mean, sigma, np.array([0.02 if fails(config) else 0.98 for config in space]))


def propose(
    searcher: Searcher, budget: int, n: int = 1, time_of: Time = time_ms, is_broken: Test = fails
) -> list[Configuration]:
    """Search with ``n`` measurements at a time; return the configurations that were measured."""
    proposed: list[Configuration] = []

    def measure(configs: Sequence[Configuration]) -> list[Measurement]:
        proposed.extend(configs)
        return [make_measurement(config, time_of, is_broken) for config in configs]

    run(search(searcher, Stopping(budget), parallel=n), measure)
    return proposed


def check_searcher(kind: Kind) -> None:
    """Search spaces of 1 to 156 configurations, some of which fail, with and without a prior.

    Raises ContractViolation if the searcher, a registered name or a `Searcher` class, violates the
    contract of `Searcher`.
    """
    for guided in (False, True):
        _check_proposals(kind, guided)
        _check_failures(kind, guided)
        _check_foreign_measurements(kind, guided)
    _check_exhaustion(kind)
    _check_incumbent(kind)
    _check_objectives(kind)
    _check_outside(kind)


def _make(
    kind: Kind, space: SearchSpace, guided: bool = False, objective: Scalarization = Objective.TIME
) -> Searcher:
    prior = make_prior(space) if guided else None
    return make_searcher(kind, space, objective, seed=3, prior=prior)


def _best_tile(searcher: Searcher) -> object:
    best = searcher.best()
    return None if best is None else best["tile"]


def _ensure_new(proposed: list[Configuration], n: int, space: SearchSpace, when: str) -> None:
    ensure(len(proposed) == n, f"{when}, {len(proposed)} of {n} configurations were proposed")
    ensure(len(set(proposed)) == n, f"{when}, a configuration was proposed twice")
    ensure(all(c in space for c in proposed), f"{when}, a proposal was outside the space")


def _check_proposals(kind: Kind, guided: bool) -> None:
    suffix = " with a prior" if guided else ""
    ensure(_make(kind, SPACE, guided).ask(0) == [], "ask(0) proposes something")

    # Asked for one or several at a time, nothing is repeated, and the seed decides everything.
    for n in (1, 7):
        proposed = propose(_make(kind, SPACE, guided), budget=28, n=n)
        _ensure_new(proposed, 28, SPACE, f"asked for {n} at a time{suffix}")
        again = propose(_make(kind, SPACE, guided), budget=28, n=n)
        ensure(proposed == again, f"the same seed gives other proposals{suffix}")

    # Measurements may come late: proposals without one are not repeated either.
    unobserved = _make(kind, SPACE, guided)
    proposed = [config for _ in range(4) for config in unobserved.ask(3)]
    _ensure_new(proposed, 12, SPACE, f"without measurements{suffix}")

    greedy = _make(kind, SMALL, guided)
    _ensure_new(greedy.ask(10_000), len(SMALL), SMALL, f"asked for more than the space has{suffix}")
    ensure(greedy.ask(5) == [], "something is proposed after the whole space was")


def _check_failures(kind: Kind, guided: bool) -> None:
    searcher = _make(kind, SPACE, guided)
    proposed = propose(searcher, 10, is_broken=lambda config: True)
    ensure(searcher.best() is None, "best() is a configuration though all failed")
    later = propose(searcher, 10)
    _ensure_new(proposed + later, 20, SPACE, "after ten failures")
    ensure(searcher.best() in later, "best() is not among those that ran")


def _check_foreign_measurements(kind: Kind, guided: bool) -> None:
    """Check that foreign measurements are learned from and not proposed again."""
    searcher = _make(kind, SMALL, guided)
    others = [c for c in SMALL if c["order"] == "ji" and not fails(c)]
    searcher.tell(make_measurement(config) for config in others)
    best = min(others, key=time_ms)
    ensure(searcher.best() == best, "best() ignores foreign measurements")
    proposed = propose(searcher, len(SPACE), n=8)
    _ensure_new([*others, *proposed], len(SMALL), SMALL, "after foreign measurements")
    ensure(searcher.best() == best, "best() is not the best of a whole space")


def _check_exhaustion(kind: Kind) -> None:
    for n in (1, 3):
        searcher = _make(kind, TINY)
        proposed = propose(
            searcher,
            budget=99,
            n=n,
            time_of=lambda config: float(config["tile"]),
            is_broken=never_fails,
        )
        _ensure_new(proposed, len(TINY), TINY, "in a space of three")
        ensure(_best_tile(searcher) == 1, "best() fails on a space of three")
        ensure(searcher.ask() == [], "something is proposed after the whole space was")
    for space in (ONE_CONFIGURATION, NO_PARAMETERS):
        searcher = _make(kind, space)
        _ensure_new(searcher.ask(3), 1, space, "in a space of one")
        only = space[0]
        searcher.tell([make_measurement(only, lambda config: 1.0, never_fails)])
        is_done = searcher.best() == only and not searcher.ask()
        ensure(is_done, "best() fails on a space of one")


def _check_incumbent(kind: Kind) -> None:
    searcher = _make(kind, SPACE)
    ensure(searcher.best() is None, "best() is a configuration before any measurement")
    slow = Configuration(tile=1, unroll=1, order="ij", pack=True, split=1)
    fast = Configuration({**slow, "tile": 4})
    broken = Configuration({**slow, "tile": 16})
    steps: list[tuple[list[Configuration], Time, Configuration]] = [
        ([slow, broken], time_ms, slow),
        ([fast], time_ms, fast),
        # A second measurement replaces the first.
        ([slow], lambda config: 0.01, slow),
    ]
    for configs, time_of, best in steps:
        searcher.tell(make_measurement(config, time_of) for config in configs)
        ensure(searcher.best() == best, f"best() is {searcher.best()}, not {best}")


def _check_objectives(kind: Kind) -> None:
    # Tile 2 is faster, and takes far more power.
    watts: dict[Value, float] = {1: 10.0, 2: 1000.0}
    times: dict[Value, float] = {1: 2.0, 2: 1.0}

    def measure(configs: Sequence[Configuration]) -> list[Measurement]:
        return [
            make_measurement(
                config,
                time_of=lambda config: times[config["tile"]],
                is_broken=never_fails,
                watts=watts[config["tile"]],
            )
            for config in configs
        ]

    for objective, best in ((Objective.TIME, 2), (Objective.ENERGY, 1), (Objective.EDP, 1)):
        searcher = _make(kind, TINY, objective=objective)
        run(search(searcher, Stopping(3), parallel=3), measure)
        ensure(_best_tile(searcher) == best, f"best() does not have the least {objective}")
    unmetered = _make(kind, SPACE, objective=Objective.ENERGY)
    _ensure_new(propose(unmetered, 8), 8, SPACE, "without a meter")
    ensure(unmetered.best() is None, "best() must be None without a metered energy")


def _check_outside(kind: Kind) -> None:
    searcher = _make(kind, SPACE)
    outside = Configuration({**SPACE[0], "tile": 3})
    try:
        searcher.tell([make_measurement(outside, lambda config: 1.0, never_fails)])
    except SpaceError:
        ensure(searcher.best() is None, "a configuration outside the space became best()")
    else:
        raise ContractViolation("tell accepts a configuration outside the space: raise SpaceError")
    searcher.tell([])
    _ensure_new(searcher.ask(2), 2, SPACE, "after a configuration was refused")
