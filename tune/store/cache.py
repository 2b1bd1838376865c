"""Cache of measurements and choices of one kernel on one device: store, shipped file, run log.

A problem's rows are read when they are needed: a store may hold millions of rows of a kernel. If
the store cannot be read or written, work continues after one warning (`FallibleStore`).
"""

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TypeVar

from foretune.measurement import Measurement
from foretune.objective import ConstrainedObjective, Objective
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store.fallible import FallibleStore, StoreLocation
from foretune.tune.store.reader import StoreReader
from foretune.tune.store.subject import CANDIDATES_TAG, OBJECTIVE_TAG, Choice, Subject

if TYPE_CHECKING:
    from foretune.collect.collection import CurrentRuns
    from foretune.datasets.run_log import RunLog
    from foretune.device import Device
    from foretune.kernel import Kernel

T = TypeVar("T")
LEAST_TIME = ConstrainedObjective(Objective.TIME, ())


class MeasurementCache:
    """Measurements and choices of a kernel's code on a device; new ones go to store and log.

    ``log``, such as a run table that the user requested, gets a copy of all that is measured or
    found. ``shipped`` results came with a library; the store's are newer. ``space_id`` identifies
    the search space if the kernel has several, and is part of a choice's key.
    """

    def __init__(
        self,
        subject: Subject,
        store: StoreLocation | FallibleStore = None,
        *,
        log: "CurrentRuns | None" = None,
        shipped: StoreReader | None = None,
        space_id: str = "",
    ) -> None:
        self.subject = subject
        self._store = store if isinstance(store, FallibleStore) else FallibleStore(store)
        self._log = log
        self._shipped = shipped
        self._space_id = space_id
        self._runs: dict[Problem, dict[Configuration, Measurement]] = {}
        self._complete: set[Problem] = set()
        """Problems of which `_runs` has all rows of the store."""
        self._with_others: set[Problem] = set()
        """Problems for which rows of other problems have been read."""
        self._choices: dict[Problem, Choice] = {}
        self._forgotten: set[Problem] = set()

    @classmethod
    def for_kernel(
        cls,
        kernel: "Kernel",
        device: "Device",
        store: StoreLocation = None,
        log: "RunLog | None" = None,
    ) -> Self:
        """Return the cache of a kernel."""
        from foretune.collect.collection import CurrentRuns
        from foretune.collect.versions import toolchain_on

        subject = Subject(
            kernel.name, kernel.source_hash, device.name, toolchain_on(device, kernel.device_kind)
        )
        current = None if log is None else CurrentRuns(kernel, device, log)
        return cls(subject, store, log=current, space_id=kernel.space_id)

    @property
    def is_kept(self) -> bool:
        """Whether others will find the measurements: in a store or in the log."""
        return self._log is not None or self._store.is_used

    def find(self, problem: Problem, config: Configuration) -> Measurement | None:
        """Return a configuration's measurement from the log, or from the store (then logged)."""
        if self._log is not None and (found := self._log.find(problem, config)) is not None:
            return found
        found = self._runs_of(problem).get(config)
        if found is not None and self._log is not None:
            self._log.append(found)
        return found

    def append(self, *measurements: Measurement) -> None:
        """Write measurements, failures included, to the log and the store.

        Raises RunTableError if one contradicts itself, which is not written; OutputError if the
        log cannot be written.
        """
        if self._log is not None:
            for m in measurements:
                self._log.append(m)
        self._remember(measurements)
        if measurements:
            self._store.write(lambda store: store.put(self.subject, measurements), None)

    def known(self, problem: Problem) -> list[Measurement]:
        """Return the store's measurements of a problem as of now."""
        if problem not in self._forgotten:
            self._read(problem)  # also what other processes measured since
        return list(self._runs.get(problem, {}).values())

    def known_for_other_problems(self, problem: Problem) -> list[Measurement]:
        """Return measurements of other problems of this kernel, from which a search may learn.

        If the store has many, they are those of the nearest problems.
        """
        if problem not in self._with_others:
            self._with_others.add(problem)
            found = self._ask_all(lambda reader: reader.other_measurements(self.subject, problem))
            self._remember(m for m in found if m.problem not in self._forgotten)
        others = (runs for p, runs in self._runs.items() if p != problem)
        return [m for runs in others for m in runs.values()]

    def forget(self, problem: Problem) -> None:
        """Ignore a problem's measurements and choices; the store keeps them for others."""
        self._runs.pop(problem, None)
        self._forgotten.add(problem)

    def choice(
        self,
        problem: Problem,
        objective: ConstrainedObjective = LEAST_TIME,
        *,
        candidates: str | None = None,
        among: Container[Configuration] | None = None,
        unfinished: bool = False,
    ) -> Choice | None:
        """Return the choice for a problem with the same objective, limits and candidates.

        ``candidates`` identifies the configurations to choose from (None: the whole space),
        ``among`` the accepted ones (None: all). Of a shipped choice and the store's, that which
        rests on more measurements counts. ``unfinished`` returns what an interrupted search left.
        """
        if problem in self._forgotten:
            return None
        key = self._choice_key(problem, objective, candidates, unfinished)
        known = self._choices.get(key)
        found = [known] if known else self._ask_all(lambda r: [r.choice(self.subject, key)])
        accepted = [
            choice
            for choice in reversed(found)  # of equal ones, the store's comes first
            if choice is not None and (among is None or choice.config in among)
        ]
        return max(accepted, key=lambda choice: choice.measured, default=None)

    def choose(
        self,
        problem: Problem,
        objective: ConstrainedObjective,
        choice: Choice,
        replacing: Choice | None = None,
        *,
        candidates: str | None = None,
        unfinished: bool = False,
    ) -> Choice:
        """Store ``choice``, or return a choice that another process stored in the meantime.

        A choice replaces ``replacing`` only if it is based on more measurements. The choice of an
        ``unfinished`` search is kept separately: it only records how much of the budget is spent.
        """
        key = self._choice_key(problem, objective, candidates, unfinished)
        standing = choice
        if problem not in self._forgotten:
            standing = self._store.write(
                lambda store: store.choose(self.subject, key, choice, replacing), choice
            )
        self._choices[key] = standing
        return standing

    def crashed_configurations(self, problem: Problem) -> list[Configuration]:
        """Return configurations that ended processes: see `Store.crashed_configurations`."""
        return self._store.query(
            lambda store: store.crashed_configurations(self.subject, problem), []
        )

    def try_claim(self, problem: Problem, config: Configuration, remeasure: bool) -> bool:
        """Return whether this process may measure ``config``: see `Store.try_claim`."""
        return self._store.query(
            lambda store: store.try_claim(self.subject, problem, config, remeasure), True
        )

    @contextmanager
    def mark_measuring(self, problem: Problem, config: Configuration) -> Iterator[None]:
        """Mark a configuration in the store while it is measured; a crash leaves the mark.

        `append` removes the mark with writing the result: nobody measures it in between.
        """
        self._store.query(
            lambda store: store.begin_measurement(self.subject, problem, config), None
        )
        try:
            yield
        except BaseException:
            self.release(problem, config)
            raise

    def release(self, problem: Problem, config: Configuration) -> None:
        """Remove the mark from a configuration that gets no result."""
        self._store.query(lambda store: store.end_measurement(self.subject, problem, config), None)

    def _runs_of(self, problem: Problem) -> dict[Configuration, Measurement]:
        if problem not in self._complete | self._forgotten:
            self._read(problem)
        return self._runs.get(problem, {})

    def _read(self, problem: Problem) -> None:
        self._remember(self._ask_all(lambda reader: reader.measurements(self.subject, problem)))
        self._complete.add(problem)

    def _remember(self, measurements: Iterable[Measurement]) -> None:
        for m in measurements:
            self._runs.setdefault(m.problem, {})[m.config] = m

    def _ask_all(self, question: Callable[[StoreReader], list[T]]) -> list[T]:
        """Return the answers of the shipped file, then of the store, which is newer."""
        shipped = question(self._shipped) if self._shipped else list[T]()
        return shipped + self._store.query(question, list[T]())

    def _choice_key(
        self,
        problem: Problem,
        objective: ConstrainedObjective,
        candidates: str | None,
        unfinished: bool,
    ) -> Problem:
        """Return the problem with tags for candidates, objective and limits."""
        tags = {}
        listed = self._space_id if candidates is None else candidates
        if listed:
            tags[CANDIDATES_TAG] = listed
        if objective != LEAST_TIME or unfinished:
            words = [objective.objective.value]
            words += [f"{limit.column}<={limit.maximum:g}" for limit in objective.limits]
            if unfinished:
                words.append("unfinished")
            tags[OBJECTIVE_TAG] = " ".join(words)
        return Problem({**problem, **tags}) if tags else problem
