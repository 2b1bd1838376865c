"""What does a server's warm-up keep of the lists of linear attention, and what does it measure?

    python benchmarks/recorded_server.py gpu/h100/libraries.jsonl --learn-from TABLE… [--budget 4]

The recording has the time of every configuration of kernels of flash-linear-attention and Liger, on
an H100 (FlagGems and Unsloth too, if they are installed; a library that is not is left out). A
server with ``FORETUNE_TRITON`` set records its calls; here ``foretune warm-up`` tunes them one
after the other: its options, prior, searcher and choice are used, and what it measured of a
kernel's earlier calls is known. The orders are learned from the tables after ``--learn-from``,
which have none of these kernels; without, the
shipped orders are used, which have learned them.

Printed are, per problem: the configurations of the list, those that are measured, the share of the
best speed that the choice keeps, and that of the list's first configuration, which runs before the
warm-up. No recording of Mamba's kernels is known.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from launch_training import fit_orders
from machine import markdown
from recorded_calls import Recorded
from recorded_gpu import read_lists
from recorded_lists import read_or_load

from foretune.search.loop import Batch
from foretune.space import Configuration
from foretune.tune.triton.call_tuner import CallTuner, CallTunerFactory
from foretune.tune.triton.launch_order import LaunchOrders
from foretune.tune.triton.options import Options
from foretune.tune.triton.prior import PriorFactory

LEARN = 60
"""Maximum number of problems of a list from which orders learn."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recording", type=Path, help="a file of gpu/libraries.py")
    parser.add_argument("--learn-from", nargs="+", type=Path, default=[], metavar="TABLE")
    parser.add_argument("--budget", nargs="*", type=int, default=[2, 3, 4], metavar="N")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where the lists are kept")
    options = parser.parse_args(argv)

    orders = None
    if options.learn_from:
        lists = read_or_load(options.keep, options.learn_from, LEARN)
        problems = [problem for of_kernel in lists for problem in of_kernel.problems]
        orders = fit_orders([problem.learned for problem in problems if problem.launches])
    recorded = read_lists(options.recording)
    for budget in options.budget:
        warmed = [warm_up(problems, budget, orders) for problems in by_kernel(recorded)]
        print(text_of(budget, warmed))


def by_kernel(recorded: Sequence[Recorded]) -> list[list[Recorded]]:
    """Return the problems of each kernel, in the order of the recording."""
    of_kernel: dict[str, list[Recorded]] = {}
    for problem in recorded:
        of_kernel.setdefault(problem.kernel, []).append(problem)
    return list(of_kernel.values())


def warm_up(
    problems: Sequence[Recorded], budget: int, orders: LaunchOrders | None
) -> list["Warmed"]:
    """Tune the problems of one kernel as a warm-up does."""
    options = Options(store=False, budget=budget, include_default=True, predictor=None)
    factory = CallTunerFactory(options)
    warmed = []
    for problem in problems:
        call = problem.call
        priors = PriorFactory(call.kernel, call.source, call.device, options, orders)
        tuner = CallTuner.for_call(
            call,
            problem.configs,
            options=options,
            cache=factory.cache_of(call),
            priors=priors,
        )
        _measure(tuner, problem)
        choice = tuner.search.best
        warmed.append(Warmed(problem, choice, measured=tuner.history.new_count))
    return warmed


def _measure(tuner: CallTuner, problem: Recorded) -> None:
    """Drive the search of one call to its end."""
    loop = tuner.search.start()
    batch: Batch[Configuration] = next(loop)
    while True:
        try:
            batch = loop.send([problem.run(config) for config in batch.start])
        except StopIteration:
            return


class Warmed:
    """The choice for one problem, and what it took."""

    def __init__(self, problem: Recorded, choice: Configuration, measured: int) -> None:
        self.kernel = problem.kernel
        self.listed = len(problem.configs)
        self.measured = measured
        self.kept = problem.kept(choice)
        self.default = problem.kept(problem.configs[0])


def text_of(budget: int, warmed_by_kernel: Sequence[Sequence[Warmed]]) -> str:
    """Return a row per kernel, and the sums."""
    rows = [_row(of_kernel[0].kernel, of_kernel) for of_kernel in warmed_by_kernel]
    everything = [warmed for of_kernel in warmed_by_kernel for warmed in of_kernel]
    head = ["kernel", "problems", "listed", "measured", "kept", "worst", "first of the list"]
    return f"FORETUNE_TRITON={budget}\n{markdown(head, [*rows, _row('all', everything)])}"


def _row(name: str, warmed: Sequence[Warmed]) -> list[str]:
    listed = sum(one.listed for one in warmed)
    measured = sum(one.measured for one in warmed)
    kept = [one.kept for one in warmed]
    defaults = [one.default for one in warmed]
    return [
        name,
        str(len(warmed)),
        str(listed),
        f"{measured} ({measured / listed:.2f})",
        f"{np.mean(kept):.3f}",
        f"{min(kept):.3f}",
        f"{np.mean(defaults):.3f}",
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
