"""Clocks of systems and engines, made when they are first needed."""

from foretune.plan.cost.screening import RejectedRows
from foretune.plan.cost.steps import StepTimer
from foretune.plan.cost.tables import OperatorTables
from foretune.plan.cost.times import OperatorTimer
from foretune.plan.cost.trained_cache import TrainedPredictorCache
from foretune.plan.describe.system import System, find_system

MAX_SIMILAR_SYSTEMS = 2
"""Measured systems that one nobody measured borrows from."""


class StepTimerFactory:
    """Finds the clock of a system and an engine.

    A system nobody measured borrows from the measured ones whose GPU is most like its own.

    Args:
        tables: of measured operators; None leaves rooflines.
        predictors: what they taught; None takes the user's cache, and says nothing.
    """

    def __init__(
        self, tables: OperatorTables | None, predictors: TrainedPredictorCache | None = None
    ) -> None:
        self._tables = tables
        self.predictors = predictors or TrainedPredictorCache()
        self._timers: dict[tuple[str, str], StepTimer] = {}

    def __call__(self, system: System, backend: str) -> StepTimer:
        """Return the clock of ``backend`` on ``system``."""
        key = system.name, backend
        if key not in self._timers:
            similar = self._similar_systems(system)
            operator_timer = OperatorTimer(
                system.device, self._tables, system.name, backend, similar, self.predictors
            )
            self._timers[key] = StepTimer(operator_timer)
        return self._timers[key]

    @property
    def rejected_rows(self) -> list[RejectedRows]:
        """What was left out of measured tables, as far as they were read."""
        return [one for timer in self._timers.values() for one in timer.rejected_rows]

    def _similar_systems(self, system: System) -> list[str]:
        """Return measured systems, the most similar GPU first; none if this one is measured."""
        if self._tables is None or system.name in self._tables.systems:
            return []
        found = [(name, find_system(name)) for name in self._tables.systems]
        found.sort(key=lambda pair: _dissimilarity(system, pair[1]))
        return [name for name, _ in found[:MAX_SIMILAR_SYSTEMS]]


def _dissimilarity(system: System, other: System) -> tuple[bool, bool, float]:
    mine, theirs = system.device, other.device
    bandwidth_ratio = theirs.specs.get("memory_gbps", 1.0) / mine.specs.get("memory_gbps", 1.0)
    makers = (device.name.split()[0] for device in (mine, theirs))
    return (
        len(set(makers)) > 1,
        theirs.architecture != mine.architecture,
        max(bandwidth_ratio, 1.0 / bandwidth_ratio),
    )
