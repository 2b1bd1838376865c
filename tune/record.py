"""One record for all: what the store knows of a kernel on a device, and the file a user asked for.

Measurements are found in the store by everybody who asks for the same kernel code, device and
toolchain. A run log beside it is a copy for whoever asked for one.
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
    """What is known of one kernel on one device, in the store and in a run log.

    Args:
        kernel: what is measured.
        device: on what.
        store: where everybody finds what is known; see `FallibleStore`.
        log: gets what is measured, and what `find` found in the store.
    """

    def __init__(
        self, kernel: Kernel, device: Device, store: StoreLocation = None, log: RunLog | None = None
    ) -> None:
        super().__init__(kernel, device, log)
        versions = toolchain(kernel.device_kind)
        self.subject = Subject(kernel.name, kernel.source_hash, device.name, versions)
        self._store = FallibleStore(store)

    def find(self, problem: Problem, config: Configuration) -> Measurement | None:
        """Return what the log has of a configuration, or the store; then it goes to the log."""
        found = super().find(problem, config)
        if (
            found is None
            and (found := self._stored_by_problem.get(problem, {}).get(config)) is not None
        ):
            super().append(found)
        return found

    def append(self, measurement: Measurement) -> None:
        """Keep a new measurement, in the log and in the store."""
        super().append(measurement)
        self._remember([measurement])
        self._store.query(lambda store: store.put(self.subject, [measurement]), None)
        if self._launch_view and (seen := self._launch_view.function_measurement(measurement)):
            self._store.query(lambda store: store.put(seen[0], [seen[1]]), None)

    def known(self, problem: Problem) -> list[Measurement]:
        """Return what the store has of a problem now; what the log has was measured by this job."""
        if self._launch_view:
            self._remember(self._measured_by_decorator(self._launch_view, problem))
        self._remember(self._read_store(problem))
        found = self._stored_by_problem.get(problem, {}).values()
        return [
            m for m in found if super(SharedMeasurementCache, self).find(problem, m.config) is None
        ]

    def known_for_other_problems(self, problem: Problem) -> list[Measurement]:
        """Return what is known of all other problems of this kernel."""
        others = (rows for p, rows in self._stored_by_problem.items() if p != problem)
        return [m for rows in others for m in rows.values()]

    def choice(self, problem: Problem, objective: ConstrainedObjective) -> Choice | None:
        """Return what was chosen for a problem before, by the same objective and limits."""
        choice_problem = self._choice_problem(problem, objective)
        return self._store.query(lambda store: store.choice(self.subject, choice_problem), None)

    def choose(
        self,
        problem: Problem,
        objective: ConstrainedObjective,
        choice: Choice,
        previous_choice: Choice | None,
    ) -> None:
        """Keep a choice; it replaces ``previous_choice`` only if it rests on more measurements."""
        choice_problem = self._choice_problem(problem, objective)
        stands = self._store.query(
            lambda store: store.choose(self.subject, choice_problem, choice, previous_choice),
            choice,
        )
        seen = self._launch_view and self._launch_view.function_choice(problem, stands)
        if seen and choice_problem == problem:  # a decorator finds least times
            self._store.query(lambda store: _choose(store, *seen), None)

    def _choice_problem(self, problem: Problem, objective: ConstrainedObjective) -> Problem:
        """Return what a choice is for: least time on a problem, or something else that it says."""
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
        """What a decorator of the same function calls these runs, of a Triton kernel."""
        if not isinstance(self.kernel, TritonKernel):
            return None
        from foretune.tune.triton.launch_view import LaunchView

        return LaunchView(self.kernel, self.device)

    def _measured_by_decorator(self, view: "LaunchView", problem: Problem) -> list[Measurement]:
        """Return what a decorator measured of a problem."""
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
