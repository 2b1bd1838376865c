"""Are two pieces of work told apart exactly if they differ?

    python benchmarks/same_work.py [--pairs 10000]

Draws a value (numbers, texts, containers, enums, objects, arrays) and puts it where a function may
read it: a closure, a default, a partial, the object of a method, an argument, an attribute of a
module. A second piece of work differs in one thing. Counts the pairs that share an identity, and
the equal ones that another process identifies differently.
"""

import argparse
import dataclasses
import enum
import functools
import json
import os
import random
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from foretune.collect.wrapped.problem_of_arguments import problem_of_arguments
from foretune.support.identity import identify

MAX_DEPTH = 3
settings = types.ModuleType("settings")
sys.modules["settings"] = settings


class Mode(enum.Enum):
    """An argument that selects what is done."""

    EVEN = 1
    ODD = 2
    ALL = 3


@dataclasses.dataclass
class Options:
    """An object that holds values."""

    size: Any
    others: Any = None


class Job:
    """An object with a method."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def run(self, n: int = 1) -> Any:
        """Use the object's value."""
        return self.data, n


def draw(rng: random.Random, depth: int = 0) -> Any:
    """Return a random value; containers are at most `MAX_DEPTH` levels deep."""
    plain: list[Callable[[], Any]] = [
        lambda: rng.randrange(-5, 2**40),
        lambda: rng.random(),
        lambda: rng.random() < 0.5,
        lambda: "".join(rng.choices("abcxyz_", k=rng.randrange(6))),
        lambda: None,
        lambda: rng.choice(list(Mode)),
        lambda: range(rng.randrange(9)),
        lambda: np.zeros(rng.randrange(1, 9), rng.choice(["f4", "f8", "i4"])),
        lambda: np.zeros((rng.randrange(2, 5), 3)),
        lambda: np.zeros((rng.randrange(2, 5), 3), order="F"),
    ]
    if depth >= MAX_DEPTH:
        return rng.choice(plain)()
    nested: list[Callable[[], Any]] = [
        lambda: [draw(rng, depth + 1) for _ in range(rng.randrange(4))],
        lambda: tuple(draw(rng, depth + 1) for _ in range(rng.randrange(4))),
        lambda: {f"k{rng.randrange(9)}": draw(rng, depth + 1) for _ in range(rng.randrange(4))},
        lambda: {rng.randrange(99) for _ in range(rng.randrange(4))},
        lambda: Options(draw(rng, depth + 1), draw(rng, depth + 1)),
    ]
    return rng.choice(plain + nested)()


def closure(value: Any) -> Any:
    """Return a function that reads a closure variable."""

    def work(n: int = 1) -> Any:
        return value, n

    return work


def with_default(value: Any) -> Any:
    """Return a function with a default."""

    def work(n: int = 1, given: Any = value) -> Any:
        return given, n

    return work


def reads_module(n: int = 1) -> Any:
    """Read the value of a module."""
    return settings.value, n  # type: ignore[attr-defined]


PLACES: dict[str, Callable[[Any], Any]] = {
    "closure": closure,
    "default": with_default,
    "partial": lambda value: functools.partial(closure, value),
    "method": lambda value: Job(value).run,
    "nested function": lambda value: closure(closure(value)),
    "dict of functions": lambda value: closure({"f": closure(value)}),
}


def identity_of(place: str, value: Any) -> str:
    """Return the identity of work that reads ``value`` at a place."""
    if place == "argument":
        told = problem_of_arguments(["x"], [value], floats_are_data=False)
        return repr(sorted(told.values.items(), key=repr))
    if place == "module":
        settings.value = value  # type: ignore[attr-defined]
        return identify(reads_module).digest
    return identify(PLACES[place](value)).digest


def written(value: Any) -> Any:
    """Return what must tell two values apart: class and content, of arrays shape and layout."""
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.flags.c_contiguous
    if isinstance(value, dict):
        return "dict", sorted((key, repr(written(part))) for key, part in value.items())
    if isinstance(value, set):
        return "set", sorted(value)
    if isinstance(value, list | tuple):
        return type(value).__name__, [written(part) for part in value]
    if isinstance(value, Options):
        return "Options", written(value.size), written(value.others)
    return type(value).__name__, repr(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--identities", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rng = random.Random(0)
    places = [*PLACES, "argument", "module"]
    drawn = []
    for _ in range(arguments.pairs):
        one = draw(rng)
        other = draw(rng)
        while written(one) == written(other):
            other = draw(rng)
        drawn.append((rng.choice(places), one, other))

    identities = [identity_of(place, one) for place, one, _ in drawn]
    if arguments.identities:
        print(json.dumps(identities))
        return
    shared = sum(
        identity_of(place, other) == identity
        for (place, _, other), identity in zip(drawn, identities, strict=True)
    )
    print(f"{len(drawn):,} pairs of different work: {shared} share an identity")

    # Another process has another order of sets, other addresses and other hashes of texts.
    command = [sys.executable, __file__, "--identities", "--pairs", str(arguments.pairs)]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    missed = sum(a != b for a, b in zip(identities, json.loads(done.stdout), strict=True))
    print(f"{len(drawn):,} pieces of work in another process: {missed} have another identity")


if __name__ == "__main__":
    main()
