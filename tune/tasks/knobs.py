"""Candidates with knobs: `foretune.tunable` functions are tuned before they are judged.

The tuning runs in a separate process, because the candidate's code must not run where it is
judged. That process answers with one configuration per problem; its verdict does not count. The
judge then compares the candidate with these values, and first with its defaults, which must also
be correct.
"""

import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from foretune.errors import MeasurementError, describe_error
from foretune.problem import Problem
from foretune.registry import object_at
from foretune.tune.tasks.module_parts import ParsedModule
from foretune.tune.tasks.task import Task
from foretune.values import Value

TUNING_SEED = 0
VERIFY_S = 0.1
"""Seconds of the comparison that ends the tuning: it stops after the fewest processes."""
GRACE_S = 120.0
"""Seconds beside the budget for imports, for the default and for the verification."""


@dataclass(frozen=True)
class TunedCode:
    """A tunable function with the chosen values of each problem, as a configuration has them."""

    location: str
    choices: tuple[tuple[Problem, tuple[tuple[str, Any], ...]], ...]

    def for_problem(self, problem: Mapping[str, Value]) -> Callable[..., Any]:
        """Return the plain function with one problem's values."""
        chosen = {known: dict(choice) for known, choice in self.choices}
        function = object_at(self.location)
        values = function.kernel().decode(chosen[Problem(problem)])  # as the candidate lists them
        return functools.partial(function.function, **values)


def may_have_knobs(task: Task) -> bool:
    """Whether a task's candidate is a decorated function of a file; nothing is imported."""
    if not isinstance(task.candidate, str) or not isinstance(task.inputs, str):
        return False
    file, _, name = task.candidate.rpartition(":")
    files = {str(path): path for path in task.files}
    path = files.get(os.path.realpath(file))
    return path is not None and ParsedModule(path).is_decorated(name)


def tuned_task(task: Task, seconds: float) -> Task | None:
    """Return the task with a tuned candidate; None if the candidate is not tunable.

    ``seconds`` is the budget of each problem's search. Raises MeasurementError if tuning fails.
    """
    choices = []
    for problem in task.problems:
        config = _choice_of(task, problem, seconds)
        if config is None:
            return None
        choices.append((problem, tuple(config.items())))
    return replace(task, candidate=TunedCode(str(task.candidate), tuple(choices)))


def _choice_of(task: Task, problem: Problem, seconds: float) -> dict[str, Any] | None:
    """Tune in another process, and return the configuration that it answers."""
    request = {
        "candidate": task.candidate,
        "inputs": task.inputs,
        "problem": dict(problem),
        "seconds": seconds,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "foretune.tune.tasks.knobs"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=2 * seconds + GRACE_S,
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired as e:
        raise MeasurementError(f"tuning the candidate did not end, on {problem}") from e
    except ValueError as e:
        last = " ".join(done.stderr.strip().splitlines()[-1:])
        raise MeasurementError(f"tuning the candidate failed on {problem}: {last}") from e
    if error := answer.get("error"):
        raise MeasurementError(f"tuning the candidate failed on {problem}: {error}")
    return answer["config"]


def _tune(request: Mapping[str, Any]) -> dict[str, Any]:
    """Tune the candidate on one problem's inputs; the configuration is None without knobs."""
    from foretune.tune.functions.tunable import Tunable
    from foretune.tune.functions.tuning import tune_wrapped

    function = object_at(request["candidate"])
    if not isinstance(function, Tunable):
        return {"config": None}
    made = object_at(request["inputs"])(**request["problem"], seed=TUNING_SEED)
    arguments = made if isinstance(made, tuple) else (made,)
    seconds = request["seconds"]
    best = tune_wrapped(function.kernel(arguments), {"seconds": seconds, "verify_s": VERIFY_S})

    # The judge verifies: a choice by few measurements may be proposed.
    steps = [step for step in best.result.trace if math.isfinite(step.objective)]
    fastest = min(steps, key=lambda step: step.objective, default=None)
    config = best.result.winner.config if fastest is None else fastest.config
    return {"config": dict(config or {})}


def main() -> int:
    """Answer the request on stdin with JSON on stdout; all other output goes to stderr."""
    request = json.load(sys.stdin)
    stdout = sys.stdout
    sys.stdout = sys.stderr
    try:
        answer = _tune(request)
        text = json.dumps(answer)
    except Exception as e:  # a user's code may raise anything
        text = json.dumps({"error": describe_error(e)})
    print(text, file=stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
