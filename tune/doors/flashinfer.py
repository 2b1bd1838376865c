"""Foretune inside FlashInfer's autotuner: it times a few tactics instead of all."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partialmethod
from typing import Any

from foretune.errors import UsageError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.search.ordered import OrderedSearcher
from foretune.space import Configuration, ListedSpace
from foretune.tune.doors.knobs import flat_knobs

DEFAULT = -1
"""FlashInfer's number of a runner's default tactic."""
METHODS = (
    "_generate_optimization_profiles", "_prepare_input_tensors", "_profile_single_kernel", "filter",
)  # fmt: skip
"""What is replaced, the last in the blocklist, the others in the autotuner."""
TESTED = "FlashInfer 0.7.2"


def patch_flashinfer(budget: int = 4) -> Callable[[], None]:
    """Let FlashInfer time and compile ``budget`` tactics per bucket of sizes, the default included.

    The first bucket of an operator, its largest, is timed in full. FlashInfer's times of earlier
    buckets order the tactics of later ones; they are remembered as long as the process lives. If
    Foretune fails, FlashInfer times all tactics. Every rank times the same tactics, as FlashInfer
    gives all ranks the same times.

    Returns:
        a function that undoes it.

    Raises:
        UsageError: ``budget`` is below 2, or FlashInfer is absent or of another version.
    """
    if budget < 2:
        raise UsageError(f"budget is {budget}: give 2 or more, as the default is one of them")
    try:
        from flashinfer.autotuner.autotuner import AutoTuner
        from flashinfer.tactics_blocklist import TacticsBlocklist

        homes = (AutoTuner, AutoTuner, AutoTuner, TacticsBlocklist)
        real = {(h, name): getattr(h, name) for h, name in zip(homes, METHODS, strict=True)}
    except (ImportError, AttributeError) as e:
        raise UsageError(f"FlashInfer cannot be patched ({e}): {TESTED} was tested") from None
    door = _Door(budget, *real.values())
    ours = (door.profiles, door.prepare, door.profile, door.filter)
    for (home, name), method in zip(real, ours, strict=True):
        setattr(home, name, partialmethod(_pass_on, method))

    def undo() -> None:
        for (home, name), method in real.items():
            setattr(home, name, method)

    return undo


def _pass_on(owner: Any, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
    return method(owner, *args, **named)


class _Door:
    """What replaces FlashInfer's methods, and the times so far."""

    def __init__(self, budget: int, *real: Callable[..., Any]) -> None:
        self.budget = budget
        self._profiles, self._prepare, self._profile, self._filter = real
        self.shapes: Sequence[Sequence[int]] = ()
        self.operator = ""
        self.times: dict[str, list[Measurement]] = {}
        """By operator and class of the runner."""

    def profiles(self, tuner: Any, *args: Any, **named: Any) -> Any:
        """Return the buckets, the largest first: its times tell most about the others."""
        return self._profiles(tuner, *args, **named)[::-1]

    def prepare(self, tuner: Any, profile: Any, inputs: Any) -> Any:
        """Remember the sizes of the bucket."""
        with suppress(Exception):
            self.shapes = profile.get_opt_shapes()
        return self._prepare(tuner, profile, inputs)

    def filter(self, blocklist: Any, custom_op: str, runner: Any, tactics: list[Any]) -> Any:
        """Return the tactics to time."""
        tactics = self._filter(blocklist, custom_op, runner, tactics)
        self.operator = f"{custom_op} {type(runner).__name__}"
        try:
            return self._shortened(tactics)
        except Exception:  # FlashInfer must go on
            return tactics

    def profile(self, tuner: Any, runner: Any, inputs: Any, tactic: Any, *args: Any, **named: Any
    ) -> Any:  # fmt: skip
        """Time a tactic as FlashInfer does; remember its time."""
        time_ms = math.inf
        try:
            time_ms = self._profile(tuner, runner, inputs, tactic, *args, **named)
            return time_ms
        finally:
            with suppress(Exception):
                self._record(tactic, time_ms)

    def _shortened(self, tactics: list[Any]) -> list[Any]:
        earlier = self.times.setdefault(self.operator, [])
        others = [tactic for tactic in tactics if tactic != DEFAULT]
        if not earlier or len(others) < self.budget:
            return tactics
        configs = [_configuration(tactic) for tactic in others]
        searcher = OrderedSearcher(
            ListedSpace(configs), problem=self._problem, other_measurements=earlier
        )
        chosen = set(searcher.ask(self.budget - 1))
        return [DEFAULT, *(t for t, c in zip(others, configs, strict=True) if c in chosen)]

    def _record(self, tactic: Any, time_ms: float) -> None:
        if tactic == DEFAULT:
            return
        ok = 0 < time_ms < math.inf
        status, time_ms = (Status.OK, time_ms) if ok else (Status.RUNTIME_ERROR, math.nan)
        self.times.setdefault(self.operator, []).append(
            Measurement(
                self.operator, self._problem, _configuration(tactic), "this", status, time_ms,
                source="flashinfer",
            )
        )  # fmt: skip

    @property
    def _problem(self) -> Problem:
        return Problem(dict(flat_knobs(list(self.shapes), "size")))


def _configuration(tactic: Any) -> Configuration:
    """Return a tactic's knobs; a number of a list says nothing about its neighbors."""
    plain = isinstance(tactic, int)
    return Configuration(dict(flat_knobs(str(tactic) if plain else tactic, "tactic")))
