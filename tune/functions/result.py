"""The result of tuning, its export (C header, JSON, .env), and stored choices."""

import json
import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.errors import UsageError, require_known
from foretune.kernel import Kernel
from foretune.problem import Problem
from foretune.registry import load
from foretune.result import Result, plain
from foretune.support.files import atomic_write
from foretune.tune.results import TuneResult
from foretune.tune.store.fallible import StoreLocation
from foretune.tune.store.store import Store
from foretune.tune.store.subject import CANDIDATES_TAG, OBJECTIVE_TAG, matches
from foretune.values import short_number

if TYPE_CHECKING:
    import pandas as pd


def _header(name: str, config: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    guard = f"{name.upper()}_TUNED_H"
    lines = [f"/* {key}: {text.replace('*/', '* /')} */" for key, text in notes.items()]
    for knob, value in config.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", knob):
            raise UsageError(f"knob {knob!r} is not a valid name in C: export JSON instead")
        option = isinstance(value, str) and value.startswith("-")
        text = f"{knob} {int(value) if isinstance(value, bool) else value}"
        lines.append(f"/* compile with {text} */" if option else f"#define {text}")
    return "\n".join([f"#ifndef {guard}", f"#define {guard}", *lines, "#endif", ""])


def _json(name: str, config: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    return json.dumps({"kernel": name, **notes, "config": dict(config)}, indent=1) + "\n"


def _env(name: str, config: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    lines = [f"# {key}: {' '.join(text.split())}" for key, text in notes.items()]
    lines += [
        f"{re.sub(r'[^A-Za-z0-9_]', '_', f'{name}_{knob}').upper()}={shlex.quote(str(value))}"
        for knob, value in config.items()
    ]
    return "\n".join([*lines, ""])


WRITERS = {"h": _header, "json": _json, "env": _env}
"""Suffix of a file -> function of kernel, configuration and notes that returns its content."""


def export_format(path: str | os.PathLike[str]) -> str:
    """Return the format of a file's suffix; raise UsageError for another suffix."""
    kind = Path(path).suffix.removeprefix(".")
    if kind not in WRITERS:
        raise UsageError(f"{path}: use a name that ends in .{', .'.join(WRITERS)}")
    return kind


@dataclass(frozen=True, eq=False, repr=False)
class Best(Result):
    """The result of tuning a function, a source or a program."""

    kernel: Kernel = field(compare=False)
    result: TuneResult

    @property
    def config(self) -> dict[str, Any]:
        """The best configuration: the default, unless another one beats it significantly."""
        return _as_listed(self.kernel, self.result.winner.config or {})

    @property
    def default(self) -> dict[str, Any]:
        """The configuration that the best was compared with."""
        return _as_listed(self.kernel, self.result.baseline.config or {})

    @property
    def time_ms(self) -> float:
        """Time of the best in the final comparison, in milliseconds.

        With another objective, its value: mJ for ``energy``, mJ·ms for ``edp``.
        """
        return self.result.winner.value

    @property
    def default_ms(self) -> float:
        """Time of the default in the final comparison, in milliseconds."""
        return self.result.baseline.value

    @property
    def speedup(self) -> float:
        """Speed-up over the default; 1 if nothing beats it."""
        return self.result.winner.ratio

    @property
    def interval(self) -> tuple[float, float]:
        """The 99 % interval of `speedup`."""
        return self.result.winner.ratio_low, self.result.winner.ratio_high

    @property
    def verified(self) -> bool:
        """Whether the best significantly beats the default."""
        return self.result.verified

    @property
    def measured(self) -> int:
        """Number of configurations that the search measured."""
        return self.result.measured

    @property
    def reused_because(self) -> str:
        """Why a stored result counts, in words; empty if the comparison was made now."""
        return self.result.reused_because

    def to_dict(self) -> dict[str, Any]:
        """Return what `TuneResult.to_dict` has, and the properties above, as plain values."""
        properties = {
            "config": self.config,
            "default": self.default,
            "time_ms": self.time_ms,
            "default_ms": self.default_ms,
            "speedup": self.speedup,
            "interval": self.interval,
            "verified": self.verified,
            "verdict": self.result.verdict,
            "measured": self.measured,
        }
        return {**plain(properties), **self.result.to_dict()}

    def report(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the result as text; with a path, also write a page (OutputError if that fails)."""
        if path is not None:
            load("views", "page")(path, self.result)
        checked = self.result.checked_on
        lines = [self.headline, *("  ".join(row) for row in self.rows())]
        if checked:
            lines.append(f"outputs were compared on {checked}")
        lines += filter(None, [self.result.reused_because, self.result.not_confirmed])
        return "\n".join(lines)

    @property
    def headline(self) -> str:
        """The result in one line."""
        return self.result.headline

    def to_frame(self) -> "pd.DataFrame":
        """Return one row per measurement, see `TuneResult.to_frame`."""
        return self.result.to_frame()

    def _repr_html_(self) -> str:
        return self.result._repr_html_()

    def rows(self, max_rows: int = 5) -> list[tuple[str, str, str]]:
        """Return the best measured configurations: time, status, knobs."""
        rows = []
        for step in sorted(self.result.trace, key=lambda s: s.objective)[:max_rows]:
            value = short_number(step.objective) if math.isfinite(step.objective) else "–"
            rows.append((value, step.status, " ".join(f"{n}={v}" for n, v in step.config.items())))
        return rows

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the best configuration in the format of the file's suffix, or raise UsageError.

        ``.h`` is a header of ``#define``; ``.json``; ``.env`` has lines for a shell.
        """
        write, result = WRITERS[export_format(path)], self.result
        notes = {"problem": result.problem.shown, "device": result.device, "verdict": self.headline}
        with atomic_write(path) as new:
            new.write_text(write(self.kernel.name, result.winner.config or {}, notes), "utf-8")
        return Path(path)


def _as_listed(kernel: Kernel, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the values of knobs as the user listed them."""
    from foretune.collect.wrapped.wrapped import WrappedKernel

    return kernel.decode(config) if isinstance(kernel, WrappedKernel) else dict(config)


def best(
    kernel: str, /, *, store: StoreLocation = None, device: str | None = None, **problem: Any
) -> dict[str, Any]:
    """Return the stored choice for a kernel, for example ``best("vector_add", n=4096)``.

    Functions, tuples and other values of knobs that are no numbers or texts are returned as texts.

    A problem that was not tuned gets the choice of the nearest one: the one with the nearest sizes
    on a logarithmic scale, and otherwise equal values.

    ``device`` is needed if the kernel was tuned on several; ``problem`` are some or all of the
    problem's values. Raises UsageError if the kernel was never tuned, or only for problems with
    other values.
    """
    if isinstance(store, bool):
        raise UsageError("give the store's path or URL, or leave it out for your own")
    reader = store if isinstance(store, Store) else Store(store)
    subject = reader.newest_subject(kernel, device)
    choices = {p: c for p, c in reader.choices(subject).items() if OBJECTIVE_TAG not in p}
    wanted = Problem(problem)
    known = {name for p in choices for name in p} - {CANDIDATES_TAG}
    require_known(f"problem parameter of {kernel}", wanted, known)

    # Sizes may differ, other values not.
    sizes = {name: v for name, v in wanted.items() if not isinstance(v, str | bool)}
    fixed = Problem({name: v for name, v in wanted.items() if name not in sizes})
    distances = {p: _distance(p, sizes) for p in choices if matches(p, fixed)}
    if not distances:
        raise UsageError(f"{kernel} was not tuned for {wanted}: tune it first")

    # Several choices for one problem with other knob values: the newest.
    nearest = min(distances.values())
    of_nearest = [choices[p] for p, distance in distances.items() if distance == nearest]
    newest = max(of_nearest, key=lambda choice: choice.chosen_at)
    return dict(newest.config)


def _distance(problem: Problem, sizes: Mapping[str, float]) -> float:
    """Return the log distance of a problem's sizes; infinite if one is missing."""
    distance = 0.0
    for name, wanted in sizes.items():
        size = problem.get(name)
        if isinstance(size, str | None):
            return math.inf
        distance += abs(math.log((abs(float(size)) + 1) / (abs(wanted) + 1)))
    return distance
