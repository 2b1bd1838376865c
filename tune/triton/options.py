"""What a user can say to `autotune` beyond what Triton's own takes."""

import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from foretune.errors import UsageError
from foretune.objective import Objective

if TYPE_CHECKING:
    from foretune.models.saved.lookup import PredictorSource
    from foretune.tune.store import Store

Budget = int | Literal["auto", "all"]
Mode = Literal["stall", "graph", "online"]


@dataclass(frozen=True)
class Options:
    """How `foretune.autotune` decides.

    Attributes:
        budget: measurements per new problem: a number is spent, and exceeded only while
            nothing ran yet, 0 predicts only, ``"all"`` measures every configuration as stock Triton
            does, ``"auto"`` measures until it is sure enough: a few where it knows the kernel, at
            worst all.
        mode: ``"stall"`` measures before the first call of a new problem returns; ``"graph"`` does
            so too, but as a replayed graph runs a kernel: back to back, with a warm cache and
            without the host; ``"online"`` lets real calls carry the trials, one configuration per
            call. Each has choices of its own.
        objective: what is minimised; energy needs a power meter.
        regret: expected loss that is small enough to stop measuring, e.g. 0.03 for 3 %.
        predictor: a trained predictor of this kernel, or its name (`foretune.models.saved.lookup`);
            ``"auto"`` takes the one that comes with Foretune (the log says which, or that none
            does), None does without. One that is named and cannot be used is an error.
        store: path or SQLAlchemy URL of the tuning store; None is the user's own, False none.
        shipped: a file of tuned results that came with a library (``foretune store --export``).
        check: largest relative difference from the first configuration's output that is accepted;
            None does not compare.
        compile_limit_s: seconds after which a configuration that still compiles is given up.
        buckets: key argument -> numbers, ascending: a value counts as the least of them that is not
            smaller; what is larger than all counts as itself.
        strict: only choices that were recorded before; a call without one is an error, so that
            every run of a program takes the same.
    """

    budget: Budget = "auto"
    mode: Mode = "stall"
    objective: Objective | str = Objective.TIME
    regret: float = 0.03
    predictor: "PredictorSource" = "auto"
    store: "Store | str | os.PathLike[str] | bool | None" = None
    shipped: str | os.PathLike[str] | None = None
    check: float | None = None
    compile_limit_s: float = 60.0
    buckets: Mapping[str, Sequence[int]] | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        number = isinstance(self.budget, int) and not isinstance(self.budget, bool)
        if not (self.budget in ("auto", "all") or (number and int(self.budget) >= 0)):
            raise UsageError(f"budget is {self.budget!r}: give a number from 0 on, 'auto' or 'all'")
        if self.mode not in get_args(Mode):
            raise UsageError(f"mode is {self.mode!r}: give 'stall', 'graph' or 'online'")
        _check_number("regret", self.regret, "a share such as 0.03", minimum=0.0)
        _check_number("compile_limit_s", self.compile_limit_s, "seconds such as 60", minimum=1e-3)
        if self.check is not None:
            _check_number("check", self.check, "a relative error such as 1e-2", minimum=1e-12)
        for name in ("predictor", "store", "shipped"):
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not (name == "store" and value in (True, False)):
                raise UsageError(f"{name} is {value!r}: give a path")
        for name, bounds in (self.buckets or {}).items():
            all_integers = all(isinstance(b, int) and not isinstance(b, bool) for b in bounds)
            if not bounds or not all_integers or sorted(set(bounds)) != list(bounds):
                raise UsageError(f"buckets of {name} are {bounds!r}: give whole numbers, ascending")
        if self.mode == "online" and self.objective != Objective.TIME:
            raise UsageError(
                "mode='online' times calls and cannot meter them: tune for energy with mode='stall'"
            )
        if self.objective not in list(Objective):
            known = ", ".join(o.value for o in Objective)
            raise UsageError(f"objective is {self.objective!r}: give one of {known}")

    def bucket(self, name: str, value: Any) -> Any:
        """Return what a value of a key argument counts as."""
        bounds = (self.buckets or {}).get(name, ())
        if not bounds or not isinstance(value, (int, float)):
            return value
        index = bisect_left(bounds, value)
        return bounds[index] if index < len(bounds) else value

    @property
    def parsed_objective(self) -> Objective:
        """The objective."""
        return Objective(self.objective)

    @property
    def measurement_limit(self) -> int | None:
        """The most measurements; None where the budget is no number."""
        return self.budget if isinstance(self.budget, int) else None

    def max_measurements(self, candidates: int) -> int:
        """Return how many of ``candidates`` may be measured."""
        return (
            candidates
            if self.measurement_limit is None
            else min(self.measurement_limit, candidates)
        )


def _check_number(name: str, value: object, example: str, minimum: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= minimum:
        raise UsageError(f"{name} is {value!r}: give {example}")
