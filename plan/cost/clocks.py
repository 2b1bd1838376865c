"""Clocks of systems and engines, made when they are first needed."""

from foretune.plan.cost.kept_predictors import KeptPredictors
from foretune.plan.cost.screening import Screened
from foretune.plan.cost.steps import StepClock
from foretune.plan.cost.tables import OperatorTables
from foretune.plan.cost.times import OperatorClock
from foretune.plan.describe.system import System, find_system

STAND_INS = 2
"""Measured systems that one nobody measured borrows from."""


class OperatorClocks:
    """Finds the clock of a system and an engine.

    A system nobody measured borrows from the measured ones whose GPU is most like its own.

    Args:
        tables: of measured operators; None leaves rooflines.
        predictors: what they taught; None takes the user's cache, and says nothing.
    """

    def __init__(
        self, tables: OperatorTables | None, predictors: KeptPredictors | None = None
    ) -> None:
        self._tables = tables
        self.predictors = predictors or KeptPredictors()
        self._clocks: dict[tuple[str, str], StepClock] = {}

    def __call__(self, system: System, backend: str) -> StepClock:
        """Return the clock of ``backend`` on ``system``."""
        key = system.name, backend
        if key not in self._clocks:
            others = self._alike(system)
            clock = OperatorClock(
                system.device, self._tables, system.name, backend, others, self.predictors
            )
            self._clocks[key] = StepClock(clock)
        return self._clocks[key]

    @property
    def screened(self) -> list[Screened]:
        """What was left out of measured tables, as far as they were read."""
        return [one for clock in self._clocks.values() for one in clock.screened]

    def _alike(self, system: System) -> list[str]:
        """Return measured systems, the most similar GPU first; none if this one is measured."""
        if self._tables is None or system.name in self._tables.systems:
            return []
        found = [(name, find_system(name)) for name in self._tables.systems]
        found.sort(key=lambda pair: _unlike(system, pair[1]))
        return [name for name, _ in found[:STAND_INS]]


def _unlike(system: System, other: System) -> tuple[bool, bool, float]:
    mine, theirs = system.device, other.device
    fast = theirs.specs.get("memory_gbps", 1.0) / mine.specs.get("memory_gbps", 1.0)
    makers = (device.name.split()[0] for device in (mine, theirs))
    return len(set(makers)) > 1, theirs.architecture != mine.architecture, max(fast, 1.0 / fast)
