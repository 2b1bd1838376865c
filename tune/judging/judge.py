"""The judge: checks a candidate on inputs that nobody has seen, then races it with its rivals.

Each implementation is alone in a process of its own (`foretune.collect.judging.contestant`), so
that the candidate sees neither right outputs nor the judge's clock. What is known to fool
benchmarks of generated kernels is refused: answers that are remembered, copied from elsewhere,
computed later or on another stream, right for one shape only, of a narrower type; inputs that are
changed; clocks that lie (compare Lange et al., "Towards robust agentic CUDA kernel benchmarking",
2025).
"""

import math
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from foretune.collect.conditions import Watch
from foretune.collect.judging.contestant import Code, Contestant, Outcome
from foretune.collect.service import Service
from foretune.collect.wrapped.values import relative_difference
from foretune.device import Device
from foretune.errors import ForetuneError, MeasurementError, UsageError
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.tune.judging.verdict import Ruling, Verdict
from foretune.tune.verify import compare, steadiness

CHECKS = 3
"""Seeds on which every output is looked at before anything is timed."""
LEAST_ROUNDS, MOST_ROUNDS = 9, 200
LOOKED_AT = 1 / 3
"""Share of the timed rounds whose outputs are looked at, too; nobody knows which."""
LIES = 1.5
"""The judge's clock may show a contestant's time times this: the processes' own work is in it."""
CLOCK_MS = 0.002
"""What calling and reading a clock takes at most."""
ASKS, BURSTS, BURST_S = 5, 40, 0.02
CANDIDATE, REFERENCE, AGAIN = "candidate", "reference", "again"


class Refusal(Exception):
    """Raised where a candidate cannot be accepted; the message says why."""


def judge(
    candidate: Code,
    reference: Code,
    problems: Sequence[Mapping[str, Any]],
    *,
    inputs: Code,
    beside: Mapping[str, Code] | None = None,
    tolerance: float = 1e-4,
    box_s: float = 2.0,
    limit_s: float = 30.0,
    device: Device | None = None,
    progress: Progress = SILENT,
) -> Verdict:
    """Say whether ``candidate`` computes what ``reference`` does, and how much faster.

    Functions of the running script are sent to their processes; ``"FILE.py:NAME"`` is loaded there,
    so that nothing of a candidate ever runs in this process.

    Args:
        candidate: the implementation to judge.
        reference: what is right. Both get the same positional arguments, and return their outputs
            or write them into arguments.
        problems: parameters of ``inputs``: several shapes, for what is right for one only.
        inputs: ``inputs(**problem, seed=…)`` returns the arguments: arrays, tensors, numbers. Other
            seeds must give other values.
        beside: more rivals by name, such as a library's call, ``torch.compile`` of the reference or
            a tuned kernel; the speed-up is over the fastest, the reference among them.
        tolerance: largest accepted ``‖output − right‖ / ‖right‖``.
        box_s: seconds of comparison per problem.
        limit_s: seconds one call may take, loading and compiling included.
        device: where it runs, to see what disturbs it; the CPU if not given.
        progress: told about every problem.

    Raises:
        UsageError: there is no problem, or the reference proves nothing on one.
        MeasurementError: the reference, a rival or ``inputs`` fails.
    """
    wanted = [Problem(p) for p in problems]
    if not wanted:
        raise UsageError("there is no problem to judge on: give at least one")
    # The reference comes first: what is wrong with the inputs is not the candidate's fault.
    codes = {REFERENCE: reference, CANDIDATE: candidate, **(beside or {})}
    for code in (inputs, *codes.values()):
        file = code.rpartition(":")[0] if isinstance(code, str) else ""
        if file.endswith(".py") and not Path(file).is_file():
            raise UsageError(f"there is no file {file}: give FILE.py:NAME or MODULE:NAME")
    if len(codes) != 2 + len(beside or {}):
        raise UsageError(f"{CANDIDATE!r} and {REFERENCE!r} are names of the judge's own")
    device = device or Device("CPU", "cpu")
    with ExitStack() as stack:
        bench = Bench({name: Service(partial(Contestant, code, inputs), _UNSENT)
                       for name, code in codes.items()}, tolerance, limit_s)  # fmt: skip
        stack.callback(bench.close)
        try:
            progress.start("checking", len(wanted))
            for problem in wanted:
                bench.check(problem)
                progress.advance(str(problem))
            progress.start("comparing", len(wanted))
            rulings = []
            for problem in wanted:
                rulings.append(bench.compare(problem, box_s, Watch(device)))
                progress.advance(str(problem))
        except Refusal as e:
            return Verdict(str(e))
    return Verdict("", tuple(rulings))


class Bench:
    """The contestants, each in its process.

    Args:
        contestants: by name.
        tolerance: largest accepted relative error.
        limit_s: seconds one call may take.
    """

    def __init__(
        self, contestants: Mapping[str, Service], tolerance: float, limit_s: float
    ) -> None:
        self.contestants = contestants
        self.tolerance = tolerance
        self.limit_s = limit_s
        self.worst = 0.0
        self._random = random.Random(secrets.randbits(64))

    def close(self) -> None:
        """End all processes."""
        for service in self.contestants.values():
            service.close()

    def check(self, problem: Problem) -> None:
        """Look at everything the contestants compute of a problem.

        Raises:
            Refusal: the candidate is wrong.
            UsageError: the reference gives the same for all inputs.
            MeasurementError: a rival fails or is wrong.
        """
        rights = []
        for seed in self._seeds(CHECKS):
            for name in self.contestants:
                self._ask(name, problem, "run", seed)
            rights.append(self._compare_outputs(problem))
        if _same(rights[0], rights[1]):
            raise UsageError(
                f"the reference gives the same for different inputs of {problem}: nothing can be "
                "proved; let inputs() use its seed, or choose another problem"
            )

    def compare(self, problem: Problem, box_s: float, watch: Watch) -> Ruling:
        """Time all contestants in turn, each round on new inputs.

        Raises:
            Refusal: the candidate is wrong in a round, or its clock is.
            MeasurementError: a rival fails.
        """
        self.worst = 0.0
        names = [*self.contestants, AGAIN]
        times: dict[str, list[float]] = {name: [] for name in names}
        with watch:
            deadline = time.monotonic() + box_s
            while len(times[AGAIN]) < MOST_ROUNDS and (
                len(times[AGAIN]) < LEAST_ROUNDS or time.monotonic() < deadline
            ):
                (seed,) = self._seeds(1)
                for name in self._random.sample(names, len(names)):
                    who = REFERENCE if name == AGAIN else name
                    times[name].append(self._ask(who, problem, "run", seed))
                if self._random.random() < LOOKED_AT:
                    self._compare_outputs(problem)
            self._compare_outputs(problem)
        self._distrust_clock(problem, float(np.median(times[CANDIDATE])))
        values = {name: np.array(ms) for name, ms in times.items()}
        again = values.pop(AGAIN)
        rivals = [name for name in values if name != CANDIDATE]
        best = min(rivals, key=lambda name: float(np.median(values[name])))
        order = [best, CANDIDATE, *(name for name in rivals if name != best)]
        contenders = tuple(compare(n, None, values[best], values[n], 0.95) for n in order)
        steady = steadiness(values[REFERENCE], again, watch.conditions)
        return Ruling(problem, contenders, len(again), steady, self.worst)

    def _compare_outputs(self, problem: Problem) -> Outcome:
        """Compare what the last calls left behind; return what is right."""
        right: Outcome = self._ask(REFERENCE, problem, "outcome")
        for name in self.contestants:
            if name == REFERENCE:
                continue
            got = self._ask(name, problem, "outcome")
            with self._blaming(name, problem):
                error = _error(got, right)
                if not error <= self.tolerance:
                    raise Refusal(
                        f"wrong: relative error {error:.2g} is above {self.tolerance:.2g}"
                    )
            if name == CANDIDATE:
                self.worst = max(self.worst, error)
        return right

    def _distrust_clock(self, problem: Problem, time_ms: float) -> None:
        """Let the candidate run for a while, and look at our own clock."""
        (seed,), calls, least_ms = self._seeds(1), 1, math.inf
        asking_s = min(self._burst_s(problem, seed, 0) for _ in range(ASKS))
        for _ in range(BURSTS):  # one that others did not disturb is enough
            seconds = self._burst_s(problem, seed, calls) - asking_s
            if seconds < BURST_S:  # the noise of asking could hide it
                calls *= 2
                continue
            least_ms = min(least_ms, 1e3 * seconds / calls)
            if least_ms <= LIES * time_ms + CLOCK_MS:
                return
        raise Refusal(
            f"its process says {time_ms:.3g} ms, the judge's clock {least_ms:.3g} ms, on {problem}"
        )

    def _burst_s(self, problem: Problem, seed: int, calls: int) -> float:
        """Return the seconds that asking for some calls takes by our own clock."""
        start = time.perf_counter()
        self._ask(CANDIDATE, problem, "burst", seed, calls)
        return time.perf_counter() - start

    def _ask(self, name: str, problem: Problem, method: str, *arguments: Any) -> Any:
        given = () if method == "outcome" else (dict(problem), *arguments)
        with self._blaming(name, problem):
            return self.contestants[name].ask(self.limit_s, method, *given)

    @contextmanager
    def _blaming(self, name: str, problem: Problem) -> Any:
        """Refuse the candidate for what goes wrong; of any other it is an error."""
        try:
            yield
        except (Refusal, TimeoutError, ChildProcessError, ForetuneError) as e:
            said = f"not done after {self.limit_s:g} s" if isinstance(e, TimeoutError) else str(e)
            if name == CANDIDATE:
                raise Refusal(
                    said if "on " + str(problem) in said else f"{said}, on {problem}"
                ) from e
            raise MeasurementError(f"{name} cannot be compared on {problem}: {said}") from e

    def _seeds(self, n: int) -> list[int]:
        """Return numbers that no earlier judge has used."""
        return [self._random.getrandbits(32) for _ in range(n)]


def _error(got: Outcome, right: Outcome) -> float:
    """Return the largest relative error.

    Raises:
        Refusal: the outputs are others than the right ones, whatever their values.
    """
    for number in sorted(got.written.keys() - right.written.keys()):
        raise Refusal(f"it changes its argument {number}, which the reference leaves alone")
    for number in sorted(right.written.keys() - got.written.keys()):
        raise Refusal(f"it does not write into its argument {number}")
    if len(got.returned) != len(right.returned):
        raise Refusal(f"it returns {len(got.returned)} arrays instead of {len(right.returned)}")
    pairs = [
        *zip(got.returned, right.returned, strict=True),
        *((got.written[i], right.written[i]) for i in sorted(right.written)),
    ]
    for ours, theirs in pairs:
        if ours.kind != theirs.kind:
            raise Refusal(f"it gives {ours.kind} instead of {theirs.kind}")
        if ours.values.shape != theirs.values.shape:
            raise Refusal(f"it gives shape {ours.values.shape} instead of {theirs.values.shape}")
    return max((relative_difference(o.values, t.values) for o, t in pairs), default=0.0)


def _same(one: Outcome, other: Outcome) -> bool:
    try:
        return _error(one, other) == 0.0
    except Refusal:
        return False


_UNSENT = ("the function", "name it FILE.py:NAME")
