"""What does it cost to check a winner outside its process, and does it refuse honest ones?

    python benchmarks/separate_check.py [--checks 10] [--functions large,short,long]

Each function has a knob for the share of its work, which is known exactly. A verification compares
the winner with the default in fresh processes, as the product does; then the winner is checked as
`foretune.tune.separate_check` does it. The functions of `tests/toy/tampering_functions.py` are
honest to nobody but the check.

Prints, by function: seconds of a verification, seconds of the check after it, the gain, and how
many checks refused an honest gain. Then how many tampering functions are right and faster for the
process that measures them, and for the check.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import heading, markdown

from foretune.collect import IsolatedRunner, local_device
from foretune.collect.wrapped.function import FunctionKernel
from foretune.space import Configuration
from foretune.tune.separate_check import Contest, SeparateVerdict, check_separately
from foretune.tune.verifier import LOOKS, MAX_SESSION_S, gather

TOY = Path(__file__).resolve().parents[1] / "tests" / "toy"
sys.path.insert(0, str(TOY))

PASSES = 10
"""Parts of the default's work."""
CANDIDATES = (9, 5)
"""Parts of the work of the candidates."""
COLUMNS = ("function", "gain", "verification, s", "check, s", "refused")


def short(x: np.ndarray, passes: int = PASSES) -> np.ndarray:
    """Work for about 20 µs."""
    for _ in range(passes):
        y = np.sqrt(x)
    return y


def large(x: np.ndarray, passes: int = PASSES) -> np.ndarray:
    """Work for about 1 ms, and return 8 MB."""
    part = x[:60_000]
    for _ in range(passes):
        np.sqrt(part)
    return np.broadcast_to(part[0], x.shape).copy()


def long(x: np.ndarray, passes: int = PASSES) -> np.ndarray:
    """Work for about 100 ms."""
    for _ in range(passes):
        y = np.sort(x)
    return y


RNG = np.random.default_rng(0)
FUNCTIONS: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "short": (short, RNG.random(2_000)),
    "large": (large, RNG.random(1_000_000)),
    "long": (long, RNG.random(130_000)),
}


def contest(
    function: Callable[..., Any], x: np.ndarray, gain: float | None, **values: tuple[int, int]
) -> Contest:
    """Return a contest between the first value of the knob and the second one."""
    ((knob, both),) = values.items()
    kernel = FunctionKernel(function, {knob: both}, (x,))
    default, candidate = (Configuration({knob: value}) for value in both)
    return Contest(kernel, kernel.problem(), default, candidate, gain)


def verified(runner: IsolatedRunner, checked: Contest) -> tuple[float, float]:
    """Return how many seconds a verification takes, and the gain that it finds."""
    configs = {checked.candidate.id: checked.candidate}

    def session(keys: Any, seed: int) -> Any:
        compared = [checked.default, *(configs[key] for key in keys)]
        return runner.compare_interleaved(
            checked.kernel, checked.problem, compared, MAX_SESSION_S, seed
        )

    start = time.perf_counter()
    _, (comparison,) = gather(session, checked.default.id, configs, seed=0, looks=LOOKS)
    return time.perf_counter() - start, comparison.ratio


def honest_rows(runner: IsolatedRunner, names: Sequence[str], checks: int) -> list[list[str]]:
    """Return a row per function and share of its work."""
    rows = []
    for name in names:
        function, x = FUNCTIONS[name]
        for passes in CANDIDATES:
            checked = contest(function, x, None, passes=(PASSES, passes))
            verification, gain = verified(runner, checked)
            checked = replace(checked, gain=gain)
            seconds = []
            verdicts = []
            for _ in range(checks):
                start = time.perf_counter()
                verdicts.append(check_separately(runner, checked))
                seconds.append(time.perf_counter() - start)
            refused = sum(verdict != SeparateVerdict() for verdict in verdicts)
            rows.append(
                [
                    name,
                    f"{gain:.2f}×",
                    f"{verification:.1f}",
                    f"{statistics.median(seconds):.1f}",
                    f"{refused} of {checks}",
                ]
            )
    return rows


def deceived(runner: IsolatedRunner, checked: Contest) -> bool:
    """Whether the process that measures a configuration calls it right and faster."""
    configs = [checked.default, checked.candidate]
    rounds = runner.compare_interleaved(checked.kernel, checked.problem, configs, 0.05)
    if rounds.failures:
        return False
    slower, faster = (np.quantile(rounds.time_ms[config.id], 0.1) for config in configs)
    return bool(faster < 0.7 * slower)


def main() -> None:
    """Print the tables."""
    from tampering_functions import TAMPERING

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checks", type=int, default=10, help="checks of each function")
    parser.add_argument("--functions", default=",".join(FUNCTIONS), help="which, comma-separated")
    options = parser.parse_args()
    names = options.functions.split(",")
    device = local_device("cpu", measure=False)
    print(heading("Winners outside their process", device))
    with IsolatedRunner(device, power=False) as runner:
        print(markdown(COLUMNS, honest_rows(runner, names, options.checks)))
        if len(names) < len(FUNCTIONS):
            return
        contests = [
            contest(f, arguments[0], 3.0, wrong=(0, 1)) for f, arguments in TAMPERING.values()
        ]
        fooled = sum(deceived(runner, one) for one in contests)
        passed = sum(check_separately(runner, one) == SeparateVerdict() for one in contests)
    print(
        f"\nOf {len(contests)} tampering functions, their process calls {fooled} right and faster;"
    )
    print(f"{passed} pass the check.")


if __name__ == "__main__":
    main()
