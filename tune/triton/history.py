"""What was measured and chosen of a decorated kernel: a view of the store, kept at arm's length.

A store that cannot be read or written costs a warning, once, and nothing else: tuning goes on with
what this process measured itself.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TypeVar

from foretune.errors import ForetuneError, ForetuneWarning
from foretune.measurement import Measurement
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import Choice, Store
from foretune.tune.store.optional import OptionalStore
from foretune.tune.store.subject import CANDIDATES, GOAL, Subject
from foretune.tune.store.tuned import Tuned
from foretune.tune.triton.call import Call
from foretune.tune.triton.launch_view import as_called, fits
from foretune.tune.triton.options import Options

T = TypeVar("T")


class History:
    """Measured runs and choices of one kernel, in this process and in the store.

    Args:
        options: say where the store is and what was shipped.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._store = OptionalStore(options.store)
        self._forgotten: set[tuple[Subject, Problem]] = set()
        self._choices: dict[tuple[Subject, Problem], Choice] = {}
        self._runs: dict[Subject, dict[tuple[Problem, Configuration], Measurement]] = {}

    def measurements(self, call: Call) -> list[Measurement]:
        """Return every run of the call's subject: of all problems, whoever measured them."""
        subject = call.subject
        if subject not in self._runs:
            found = self._ask(lambda tuned: tuned.measurements(subject))
            seen = (as_called(m, call.problem, call.knobs) for m in found)
            self._runs[subject] = {(m.problem, m.config): m for m in seen if m is not None}
        elif (
            subject,
            call.problem,
        ) not in self._forgotten:  # others may have measured this problem since
            found = self._ask(lambda tuned: tuned.measurements(subject, call.problem))
            self._runs[subject] |= {(m.problem, m.config): m for m in found}
        return list(self._runs[subject].values())

    def forget(self, call: Call) -> None:
        """Do as if nothing were known of this problem; what others measured stays in the store."""
        self.measurements(call)
        self._choices.clear()
        self._forgotten.add((call.subject, call.problem))
        runs = self._runs[call.subject]
        self._runs[call.subject] = {k: m for k, m in runs.items() if k[0] != call.problem}

    def abandoned(self, call: Call) -> list[Configuration]:
        """Return configurations whose measurement took a whole process with it."""
        return self._store.ask(lambda store: store.abandoned(call.subject, call.problem), [])

    def claim(self, call: Call, config: Configuration, again: bool) -> bool:
        """Return whether ``config`` is this process's to measure: see `Store.claim`."""
        subject, problem = call.subject, call.problem
        return self._store.ask(lambda store: store.claim(subject, problem, config, again), True)

    @contextmanager
    def trial(self, call: Call, config: Configuration) -> Iterator[None]:
        """Within, the store says that ``config`` is being measured: a crash leaves that mark.

        `record` takes it away with what was found, so that nobody measures it in between.
        """
        self._store.ask(lambda store: store.begin(call.subject, call.problem, config), None)
        try:
            yield
        except BaseException:
            self.release(call, config)
            raise

    def release(self, call: Call, config: Configuration) -> None:
        """Take the mark away from a configuration of which nothing is recorded."""
        self._store.ask(lambda store: store.end(call.subject, call.problem, config), None)

    def record(self, call: Call, measurements: Sequence[Measurement]) -> None:
        """Remember runs of the call's problem."""
        self.measurements(call)
        self._runs[call.subject] |= {(m.problem, m.config): m for m in measurements}
        self._store.ask(lambda store: store.put(call.subject, measurements), None)

    def choice(self, call: Call, candidates: Sequence[Configuration]) -> Choice | None:
        """Return what was chosen among these candidates, or for the problem by somebody else."""
        if (call.subject, call.problem) in self._forgotten:
            return None
        own = self._choices.get((call.subject, self._among(call, candidates)))
        if own is not None:
            return own
        others = [call.problem] if self._options.goal is Objective.TIME else []
        for asked in (self._among(call, candidates), *others):
            for choice in self._ask(lambda tuned, p=asked: _listed(tuned.choice(call.subject, p))):  # type: ignore[misc]
                if choice.config in candidates:
                    return choice
        return self._tuned(call, candidates) if others else None

    def _tuned(self, call: Call, candidates: Sequence[Configuration]) -> Choice | None:
        """Return what ``foretune tune`` chose last for a launch that this call may be."""
        problem = Problem({n: v for n, v in call.problem.items() if n != "timed"})
        made = self._ask(lambda tuned: list(tuned.choices(call.subject).items()))
        for tuned, choice in reversed(made):
            launch = {**tuned, **choice.config}
            fitting = [c for c in candidates if fits(problem, c, launch)]
            if fitting and not {CANDIDATES, GOAL} & tuned.keys():
                return replace(choice, config=fitting[0])
        return None

    def choose(
        self,
        call: Call,
        candidates: Sequence[Configuration],
        choice: Choice,
        instead_of: Choice | None = None,
    ) -> Choice:
        """Settle on ``choice``, or on what another process settled on meanwhile.

        Args:
            call: what it is for.
            candidates: among which.
            choice: what this process found.
            instead_of: what stood when it began.
        """
        asked = self._among(call, candidates)
        stands = choice
        if (call.subject, call.problem) not in self._forgotten:
            stands = self._store.ask(
                lambda store: store.choose(call.subject, asked, choice, instead_of), choice
            )
        self._choices[call.subject, asked] = stands
        return stands

    def _ask(self, question: Callable[[Tuned], list[T]]) -> list[T]:
        """Return the answers of what was shipped, then of the store, which is newer."""
        shipped = question(self._library) if self._library else list[T]()
        return shipped + self._store.ask(question, list[T]())

    @cached_property
    def _library(self) -> Tuned | None:
        """What was shipped; the user's own store does not suffer if that is broken."""
        if self._options.shipped is None:
            return None
        try:
            return Store.of_file(self._options.shipped)
        except ForetuneError as e:
            warnings.warn(f"shipped results are not used: {e}", ForetuneWarning, stacklevel=2)
            return None

    def _among(self, call: Call, candidates: Sequence[Configuration]) -> Problem:
        """Return the problem of choosing among these for this end: any other is another one."""
        options = self._options
        listed = _digest(tuple(candidates), options.goal.value, str(options.check))
        return Problem({**call.problem, CANDIDATES: listed})


@lru_cache(maxsize=64)
def _digest(candidates: tuple[Configuration, ...], goal: str, check: str) -> str:
    """Return what identifies candidates and an end: most calls of a kernel have the same."""
    parts = [*sorted(c.id for c in candidates), goal, check]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def _listed(choice: Choice | None) -> list[Choice]:
    return [] if choice is None else [choice]
