"""Recorded problems as plain data, which a file keeps.

Reading the tables takes minutes, because kernels are traced to find what their blocks compute. What
results is small: the launches of a problem's configurations, and their times.
"""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import recorded_tables
from launch_training import MeasuredProblem
from recorded_calls import Recorded

from foretune.device import Device
from foretune.errors import UsageError
from foretune.features.launches import TileLaunch, launch_features
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.search.encoding import KernelRuns
from foretune.space import Configuration
from foretune.tune.triton.row_order import RowLaunches


@dataclass(frozen=True)
class ListedProblem:
    """One problem of a kernel, with the time of every configuration of its list.

    Attributes:
        kernel: the kernel's name.
        dtype: the type of its operands.
        problem: its sizes and types, as a decorator sees them.
        device: the GPU.
        configs: the list, in its author's order.
        time_ms: the time of each configuration; infinite if it failed.
        programs: the number of programs of each configuration; NaN if unknown.
        launches: the launch of each configuration; empty if no tiles are multiplied.
        elements: elements of the largest tensor of each configuration's blocks; empty if tiles are
            multiplied.
    """

    kernel: str
    dtype: str
    problem: Problem
    device: Device
    configs: tuple[Configuration, ...]
    time_ms: np.ndarray
    programs: np.ndarray
    launches: tuple[TileLaunch, ...] = ()
    elements: tuple[float, ...] = ()

    @classmethod
    def of(cls, recorded: Recorded) -> "ListedProblem":
        """Return what a recorded problem consists of."""
        law = recorded.law
        elements: tuple[float, ...] = ()
        if not recorded.is_product and law is not None:
            elements = tuple(law.elements(config) for config in recorded.configs)
        return cls(
            kernel=recorded.kernel,
            dtype=recorded.dtype,
            problem=recorded.call.problem,
            device=recorded.call.device,
            configs=recorded.configs,
            time_ms=recorded.time_ms,
            programs=np.array([recorded.call.programs(config) for config in recorded.configs]),
            launches=tuple(recorded.launches) if recorded.is_product else (),
            elements=elements,
        )

    @cached_property
    def learned(self) -> MeasuredProblem:
        """The problem as `launch_training.fit_orders` learns from it."""
        columns = launch_features(self.launches, self.device)
        return MeasuredProblem(self.kernel, columns, self.time_ms)

    @property
    def row_launches(self) -> RowLaunches:
        """The launches of a kernel without a product."""
        runs = KernelRuns([self.problem] * len(self.configs), self.configs, self.statics)
        return RowLaunches(np.array(self.elements), runs.warps)

    @property
    def shares(self) -> np.ndarray:
        """The share of the best speed that each configuration keeps; 0 for failures."""
        return self.time_ms.min() / self.time_ms

    @property
    def statics(self) -> list[dict[str, float]]:
        """What is known of each configuration before it runs."""
        return [{"programs": n} if np.isfinite(n) else {} for n in self.programs.tolist()]

    def measurement(self, number: int) -> Measurement:
        """Return the measurement of a configuration."""
        time_ms = float(self.time_ms[number])
        ran = np.isfinite(time_ms)
        return Measurement(
            kernel=self.kernel,
            problem=self.problem,
            config=self.configs[number],
            device=self.device.name,
            status=Status.OK if ran else Status.RUNTIME_ERROR,
            time_ms=time_ms if ran else np.nan,
        )


@dataclass(frozen=True)
class ProblemList:
    """Problems of one kernel that share a kind of list; ``table`` is the name of their file."""

    name: str
    table: str
    problems: Sequence[ListedProblem]

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.problems[0].kernel

    @property
    def family(self) -> str:
        """What its kernel computes: products, attention, or rows."""
        launches = self.problems[0].launches
        if not launches:
            return "rows"
        return "attention" if any(launch.kept_bytes for launch in launches) else "products"


def read_lists(paths: Sequence[Path], problems: int, seed: int = 0) -> Iterator[ProblemList]:
    """Yield the lists of all tables, with at most ``problems`` each, drawn at random."""
    for path in paths:
        for name, recorded in recorded_tables.read(path, problems, seed).items():
            kernel = recorded[0].kernel
            of_table = f"{path.stem}: {kernel}"
            title = of_table if name in (kernel, path.stem) else f"{name}: {kernel}"
            yield ProblemList(title, path.name, [ListedProblem.of(problem) for problem in recorded])


def read_or_load(kept: Path | None, paths: Sequence[Path], problems: int) -> list[ProblemList]:
    """Return the lists in the file ``kept``; if there is none, read the tables and write it.

    Raises:
        UsageError: The file has lists of other tables, or is older than one of them.
    """
    if kept is not None and kept.exists():
        lists: list[ProblemList] = pickle.loads(kept.read_bytes())
        _check_tables(kept, lists, paths)
        return lists
    lists = list(read_lists(paths, problems))
    if kept is not None:
        kept.write_bytes(pickle.dumps(lists))
    return lists


def _check_tables(kept: Path, lists: Sequence[ProblemList], paths: Sequence[Path]) -> None:
    """Refuse kept lists that are not those of the given tables; none given: any are right."""
    in_file = {of_kernel.table for of_kernel in lists}
    given = {path.name for path in paths}
    if given and given != in_file:
        raise UsageError(
            f"{kept} has lists of {', '.join(sorted(in_file))}, not of {', '.join(sorted(given))}: "
            "delete it, or name another file"
        )
    for path in paths:
        if path.exists() and path.stat().st_mtime > kept.stat().st_mtime:
            raise UsageError(f"{path} is newer than {kept}: delete that, to read the table again")
