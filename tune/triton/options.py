"""Options of `autotune` that Triton's decorator does not have."""

import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from foretune.errors import UsageError
from foretune.objective import Objective

if TYPE_CHECKING:
    from foretune.models.saved.lookup import PredictorSource
    from foretune.search.stopping import Stopping
    from foretune.tune.store.fallible import StoreLocation
    from foretune.tune.triton.output_check import Reference

Budget = int | Literal["auto", "all"]
Mode = Literal["stall", "graph", "online", "serve"]


@dataclass(frozen=True)
class Options:
    """Options of `foretune.autotune`.

    Attributes:
        budget: measurements per new problem. A number is exceeded only until the first
            configuration runs; 0 only predicts. ``"all"`` measures every configuration, as stock
            Triton does. ``"auto"`` measures until the expected regret is below ``regret``.
        seconds: wall time of compiling and measuring for a new problem, after which no measurement
            is started; None for no limit. One process's measurements in this time suffice for all.
        mode: ``"stall"`` measures before the first call of a new problem returns. ``"graph"`` does
            too, but measures replays of a CUDA graph: back to back, with a warm cache, without the
            host. ``"online"`` measures real calls, one configuration per call. Choices are stored
            per mode. ``"serve"`` measures nothing: it takes the stored choice of ``"stall"``, else
            the first configuration.
        objective: the quantity to minimize; energy needs a power meter.
        regret: expected regret below which measuring stops, e.g. 0.03 for 3 %.
        predictor: a trained predictor of this kernel, any model, or a name
            (`foretune.models.saved.lookup`); an error if it cannot be used. ``"auto"`` takes the
            one shipped with Foretune, if any, and logs which. None uses no predictor.
        store: path of the tuning store, or a URL; None for the user's own, False for none.
        shipped: a file of tuned results that came with a library (``foretune store --export``).
        check: maximum relative error of the output; None does not compare. The output is compared
            with the first configuration's, unless two others agree with each other but not with it.
        reference: compare with this function's result instead (`foretune.tune.triton.output_check.
            Reference`): it takes the kernel's arguments by name and returns a dictionary from names
            of arguments to the tensors expected there. Needs ``check``.
        compile_limit_s: time limit for compiling one configuration, seconds.
        buckets: key argument -> ascending upper bounds. A value counts as the smallest bound that
            is not below it; a value above all bounds counts as itself.
        include_default: measure the first configuration of the list, too, within the budget, so
            that the choice is never slower than what a program without tuning runs.
        strict: use recorded choices only, so that every run of a program uses the same ones; a
            call without one is an error.
    """

    budget: Budget = "auto"
    seconds: float | None = None
    mode: Mode = "stall"
    objective: Objective | str = Objective.TIME
    regret: float = 0.03
    predictor: "PredictorSource" = "auto"
    store: "StoreLocation" = None
    shipped: str | os.PathLike[str] | None = None
    check: float | None = None
    reference: "Reference | None" = None
    compile_limit_s: float = 60.0
    buckets: Mapping[str, Sequence[int]] | None = None
    strict: bool = False
    include_default: bool = False

    def __post_init__(self) -> None:
        number = isinstance(self.budget, int) and not isinstance(self.budget, bool)
        if not (self.budget in ("auto", "all") or (number and int(self.budget) >= 0)):
            raise UsageError(f"budget is {self.budget!r}: give a number from 0 on, 'auto' or 'all'")
        if self.mode not in get_args(Mode):
            raise UsageError(f"mode is {self.mode!r}: give 'stall', 'graph', 'online' or 'serve'")
        _check_number("regret", self.regret, "a share such as 0.03", minimum=0.0)
        if self.seconds is not None:
            _check_number("seconds", self.seconds, "seconds such as 30", minimum=1e-3)
        _check_number("compile_limit_s", self.compile_limit_s, "seconds such as 60", minimum=1e-3)
        for name in ("predictor", "store", "shipped"):
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not (name == "store" and value in (True, False)):
                raise UsageError(f"{name} is {value!r}: give a path")
        for name, bounds in (self.buckets or {}).items():
            all_integers = all(isinstance(b, int) and not isinstance(b, bool) for b in bounds)
            if not bounds or not all_integers or sorted(set(bounds)) != list(bounds):
                raise UsageError(f"buckets of {name} are {bounds!r}: give whole numbers, ascending")
        if self.objective not in list(Objective):
            known = ", ".join(o.value for o in Objective)
            raise UsageError(f"objective is {self.objective!r}: give one of {known}")
        self._check_outputs()
        if self.mode == "online" and (self.objective != Objective.TIME or self.check is not None):
            raise UsageError(
                "mode='online' times calls and cannot meter or compare them: tune for energy, or "
                "check, with mode='stall'"
            )

    def _check_outputs(self) -> None:
        if self.check is not None:
            _check_number("check", self.check, "a relative error such as 1e-2", minimum=1e-12)
        elif self.reference is not None:
            raise UsageError("reference needs the relative error allowed: give check=1e-2")
        if self.reference is not None and not callable(self.reference):
            raise UsageError(f"reference is {self.reference!r}: give a function")

    def bucket(self, name: str, value: Any) -> Any:
        """Return the bucket of a key argument's value."""
        bounds = (self.buckets or {}).get(name, ())
        if not bounds or not isinstance(value, (int, float)):
            return value
        index = bisect_left(bounds, value)
        return bounds[index] if index < len(bounds) else value

    @property
    def parsed_objective(self) -> Objective:
        """The objective."""
        return Objective(self.objective)

    @cached_property
    def problem_tags(self) -> dict[str, str]:
        """Parameters of a problem that state how it was timed and compared."""
        is_plain = self.mode in ("stall", "serve")
        tags: dict[str, str] = {} if is_plain else {"timed": self.mode}
        if self.reference is not None:
            from foretune.support.identity import source_hash_of_function

            tags["reference"] = source_hash_of_function(self.reference)
        return tags

    @property
    def measures_all(self) -> bool:
        """Whether every candidate is measured."""
        return self.budget == "all"

    @property
    def measurement_limit(self) -> int | None:
        """Maximum number of measurements; None unless the budget is a number."""
        return self.budget if isinstance(self.budget, int) else None

    @property
    def stopping(self) -> "Stopping":
        """The stopping rule of a search."""
        from foretune.search.stopping import Stopping

        regret = self.regret if self.budget == "auto" else None
        return Stopping(self.measurement_limit, regret, self.seconds)

    def is_spent(self, measured: int) -> bool:
        """Whether a stored choice after ``measured`` measurements used up the budget."""
        limit = self.measurement_limit
        return (limit is not None and measured >= limit) or (
            self.seconds is not None and measured > 0
        )

    def max_measurements(self, candidates: int) -> int:
        """Return how many of ``candidates`` may be measured."""
        limit = self.measurement_limit
        return candidates if limit is None else min(limit, candidates)


def _check_number(name: str, value: object, example: str, minimum: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= minimum:
        raise UsageError(f"{name} is {value!r}: give {example}")
