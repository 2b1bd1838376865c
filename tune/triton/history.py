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
from foretune.tune.store.optional import FallibleStore
from foretune.tune.store.reader import StoreReader
from foretune.tune.store.subject import CANDIDATES_TAG, OBJECTIVE_TAG, Subject
from foretune.tune.triton.launch_view import in_call_terms, launch_matches
from foretune.tune.triton.options import Options
from foretune.tune.triton.problem_key import Call

T = TypeVar("T")


class KernelHistory:
    """Measured runs and choices of one kernel, in this process and in the store.

    Args:
        options: say where the store is and what was shipped.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._store = FallibleStore(options.store)
        self._forgotten: set[tuple[Subject, Problem]] = set()
        self._choices: dict[tuple[Subject, Problem], Choice] = {}
        self._runs: dict[Subject, dict[tuple[Problem, Configuration], Measurement]] = {}

    def measurements(self, call: Call) -> list[Measurement]:
        """Return every run of the call's subject: of all problems, whoever measured them."""
        subject = call.subject
        if subject not in self._runs:
            found = self._query_all(lambda tuned: tuned.measurements(subject))
            seen = (in_call_terms(m, call.problem, call.knobs) for m in found)
            self._runs[subject] = {(m.problem, m.config): m for m in seen if m is not None}
        elif (
            subject,
            call.problem,
        ) not in self._forgotten:  # others may have measured this problem since
            found = self._query_all(lambda tuned: tuned.measurements(subject, call.problem))
            self._runs[subject] |= {(m.problem, m.config): m for m in found}
        return list(self._runs[subject].values())

    def forget(self, call: Call) -> None:
        """Do as if nothing were known of this problem; what others measured stays in the store."""
        self.measurements(call)
        self._choices.clear()
        self._forgotten.add((call.subject, call.problem))
        runs = self._runs[call.subject]
        self._runs[call.subject] = {k: m for k, m in runs.items() if k[0] != call.problem}

    def crashed_configurations(self, call: Call) -> list[Configuration]:
        """Return configurations whose measurement took a whole process with it."""
        return self._store.query(
            lambda store: store.crashed_configurations(call.subject, call.problem), []
        )

    def try_claim(self, call: Call, config: Configuration, remeasure: bool) -> bool:
        """Return whether ``config`` is this process's to measure: see `Store.claim`."""
        subject, problem = call.subject, call.problem
        return self._store.query(
            lambda store: store.try_claim(subject, problem, config, remeasure), True
        )

    @contextmanager
    def mark_measuring(self, call: Call, config: Configuration) -> Iterator[None]:
        """Within, the store says that ``config`` is being measured: a crash leaves that mark.

        `record` takes it away with what was found, so that nobody measures it in between.
        """
        self._store.query(
            lambda store: store.begin_measurement(call.subject, call.problem, config), None
        )
        try:
            yield
        except BaseException:
            self.release(call, config)
            raise

    def release(self, call: Call, config: Configuration) -> None:
        """Take the mark away from a configuration of which nothing is recorded."""
        self._store.query(
            lambda store: store.end_measurement(call.subject, call.problem, config), None
        )

    def record(self, call: Call, measurements: Sequence[Measurement]) -> None:
        """Remember runs of the call's problem."""
        self.measurements(call)
        self._runs[call.subject] |= {(m.problem, m.config): m for m in measurements}
        self._store.query(lambda store: store.put(call.subject, measurements), None)

    def choice(self, call: Call, candidates: Sequence[Configuration]) -> Choice | None:
        """Return what was chosen among these candidates, or for the problem by somebody else."""
        if (call.subject, call.problem) in self._forgotten:
            return None
        cached = self._choices.get((call.subject, self._choice_problem(call, candidates)))
        if cached is not None:
            return cached
        others = [call.problem] if self._options.parsed_objective is Objective.TIME else []
        for choice_problem in (self._choice_problem(call, candidates), *others):
            for choice in self._query_all(
                lambda tuned, p=choice_problem: _as_list(tuned.choice(call.subject, p))  # type: ignore[misc]
            ):
                if choice.config in candidates:
                    return choice
        return self._choice_of_tune_command(call, candidates) if others else None

    def _choice_of_tune_command(
        self, call: Call, candidates: Sequence[Configuration]
    ) -> Choice | None:
        """Return what ``foretune tune`` chose last for a launch that this call may be."""
        problem = Problem({n: v for n, v in call.problem.items() if n != "timed"})
        made = self._query_all(lambda tuned: list(tuned.choices(call.subject).items()))
        for tuned, choice in reversed(made):
            launch = {**tuned, **choice.config}
            fitting = [c for c in candidates if launch_matches(problem, c, launch)]
            if fitting and not {CANDIDATES_TAG, OBJECTIVE_TAG} & tuned.keys():
                return replace(choice, config=fitting[0])
        return None

    def choose(
        self,
        call: Call,
        candidates: Sequence[Configuration],
        choice: Choice,
        replacing: Choice | None = None,
    ) -> Choice:
        """Settle on ``choice``, or on what another process settled on meanwhile.

        Args:
            call: what it is for.
            candidates: among which.
            choice: what this process found.
            replacing: what stood when it began.
        """
        choice_problem = self._choice_problem(call, candidates)
        stands = choice
        if (call.subject, call.problem) not in self._forgotten:
            stands = self._store.query(
                lambda store: store.choose(call.subject, choice_problem, choice, replacing), choice
            )
        self._choices[call.subject, choice_problem] = stands
        return stands

    def _query_all(self, question: Callable[[StoreReader], list[T]]) -> list[T]:
        """Return the answers of what was shipped, then of the store, which is newer."""
        shipped = question(self._shipped_reader) if self._shipped_reader else list[T]()
        return shipped + self._store.query(question, list[T]())

    @cached_property
    def _shipped_reader(self) -> StoreReader | None:
        """What was shipped; the user's own store does not suffer if that is broken."""
        if self._options.shipped is None:
            return None
        try:
            return Store.from_file(self._options.shipped)
        except ForetuneError as e:
            warnings.warn(f"shipped results are not used: {e}", ForetuneWarning, stacklevel=2)
            return None

    def _choice_problem(self, call: Call, candidates: Sequence[Configuration]) -> Problem:
        """Return the problem of choosing among these for this end: any other is another one."""
        options = self._options
        listed = _digest(tuple(candidates), options.parsed_objective.value, str(options.check))
        return Problem({**call.problem, CANDIDATES_TAG: listed})


@lru_cache(maxsize=64)
def _digest(candidates: tuple[Configuration, ...], objective: str, check: str) -> str:
    """Return what identifies candidates and an end: most calls of a kernel have the same."""
    parts = [*sorted(c.id for c in candidates), objective, check]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def _as_list(choice: Choice | None) -> list[Choice]:
    return [] if choice is None else [choice]
