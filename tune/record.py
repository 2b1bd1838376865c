"""Cache of measurements of one kernel on one device: the store plus an optional run log.

The store shares measurements by kernel code, device and toolchain. A run log is a copy of what one
job measured or reused.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from foretune.collect.kernels.triton_kernel import TritonKernel
from foretune.collect.record import MeasurementCache
from foretune.collect.versions import toolchain
from foretune.datasets import RunLog
from foretune.device import Device
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.objective import ConstrainedObjective, Objective
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store.optional import FallibleStore, StoreLocation
from foretune.tune.store.store import Store
from foretune.tune.store.subject import (
    CANDIDATES_TAG,
    OBJECTIVE_TAG,
    Choice,
    Subject,
    group_by_problem,
)

if TYPE_CHECKING:
    from foretune.tune.triton.launch_view import LaunchView


class SharedMeasurementCache(MeasurementCache):
    """The measurements of one kernel on one device, in the store and in a run log.

    Args:
        kernel: the kernel.
        device: the device.
        store: the shared store; see `FallibleStore`.
        log: gets new measurements, and stored ones that `find` returns.
    """

    def __init__(
        self, kernel: Kernel, device: Device, store: StoreLocation = None, log: RunLog | None = None
    ) -> None:
        super().__init__(kernel, device, log)
        versions = toolchain(kernel.device_kind)
        self.subject = Subject(kernel.name, kernel.source_hash, device.name, versions)
        self._store = FallibleStore(store)

    def find(self, problem: Problem, config: Configuration) -> Measurement | None:
        """Return a measurement from the log, or from the store, which also adds it to the log."""
        found = super().find(problem, config)
        if (
            found is None
            and (found := self._stored_by_problem.get(problem, {}).get(config)) is not None
        ):
            super().append(found)
        return found

    def append(self, measurement: Measurement) -> None:
        """Add a new measurement to the log and the store."""
        super().append(measurement)
        self._remember([measurement])
        self._store.query(lambda store: store.put(self.subject, [measurement]), None)
        if self._launch_view and (seen := self._launch_view.function_measurement(measurement)):
            self._store.query(lambda store: store.put(seen[0], [seen[1]]), None)

    def known(self, problem: Problem) -> list[Measurement]:
        """Return the store's current measurements of a problem, without those in the log."""
        if self._launch_view:
            self._remember(self._measured_by_decorator(self._launch_view, problem))
        self._remember(self._read_store(problem))
        found = self._stored_by_problem.get(problem, {}).values()
        return [
            m for m in found if super(SharedMeasurementCache, self).find(problem, m.config) is None
        ]

    def known_for_other_problems(self, problem: Problem) -> list[Measurement]:
        """Return the stored measurements of all other problems of this kernel."""
        others = (rows for p, rows in self._stored_by_problem.items() if p != problem)
        return [m for rows in others for m in rows.values()]

    def choice(self, problem: Problem, objective: ConstrainedObjective) -> Choice | None:
        """Return the stored choice for a problem, objective and limits."""
        choice_problem = self._choice_problem(problem, objective)
        return self._store.query(lambda store: store.choice(self.subject, choice_problem), None)

    def choose(
        self,
        problem: Problem,
        objective: ConstrainedObjective,
        choice: Choice,
        previous_choice: Choice | None,
    ) -> None:
        """Store a choice; it replaces ``previous_choice`` only if it rests on more measurements."""
        choice_problem = self._choice_problem(problem, objective)
        stands = self._store.query(
            lambda store: store.choose(self.subject, choice_problem, choice, previous_choice),
            choice,
        )
        seen = self._launch_view and self._launch_view.function_choice(problem, stands)
        if seen and choice_problem == problem:  # a decorator finds least times
            self._store.query(lambda store: _choose(store, *seen), None)

    def _choice_problem(self, problem: Problem, objective: ConstrainedObjective) -> Problem:
        """Return the problem with tags for the candidates, and for objectives other than time."""
        more = {CANDIDATES_TAG: self.kernel.space_id} if self.kernel.space_id else {}
        if objective != ConstrainedObjective(Objective.TIME, ()):
            limits = (f"{x.column}<={x.maximum:g}" for x in objective.limits)
            more[OBJECTIVE_TAG] = " ".join([objective.objective.value, *limits])
        return Problem({**problem, **more}) if more else problem

    @cached_property
    def _stored_by_problem(self) -> dict[Problem, dict[Configuration, Measurement]]:
        found = group_by_problem(self._read_store(None))
        return {p: {m.config: m for m in rows} for p, rows in found.items()}

    def _read_store(self, problem: Problem | None) -> list[Measurement]:
        nothing: list[Measurement] = []
        return self._store.query(lambda store: store.measurements(self.subject, problem), nothing)

    @cached_property
    def _launch_view(self) -> "LaunchView | None":
        """How the decorator of the same function names these runs, if it is a Triton kernel."""
        if not isinstance(self.kernel, TritonKernel):
            return None
        from foretune.tune.triton.launch_view import LaunchView

        return LaunchView(self.kernel, self.device)

    def _measured_by_decorator(self, view: "LaunchView", problem: Problem) -> list[Measurement]:
        """Return the decorator's measurements of a problem."""
        run = view.function_launch(problem, self.kernel.default(problem))
        if run is None:
            return []
        nothing: list[Measurement] = []
        runs = self._store.query(lambda store: store.measurements(run.subject), nothing)
        return view.kernel_measurements(problem, self.kernel.space(problem), runs)

    def _remember(self, measurements: Iterable[Measurement]) -> None:
        for m in measurements:
            self._stored_by_problem.setdefault(m.problem, {})[m.config] = m


def _choose(store: Store, subject: Subject, problem: Problem, choice: Choice) -> None:
    store.choose(subject, problem, choice, store.choice(subject, problem))
