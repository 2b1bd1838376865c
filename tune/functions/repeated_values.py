"""Says when a configuration was only fast for arguments that repeat.

A search calls a function with the same arguments again and again, the final comparison with new
values. A configuration that keeps results is fast in the first only. If the user's program repeats
its arguments, too, this is an honest gain: `pinned` keeps the values.
"""

from foretune.collect.wrapped.function import FunctionKernel
from foretune.collect.wrapped.new_values import GIVEN_VALUES
from foretune.collect.wrapped.wrapped import WrappedKernel
from foretune.errors import warn
from foretune.tune.results import TuneResult

MIN_FACTOR = 3.0
"""The search's speed-up over the final one from which the user is told: more than noise."""


def warn_of_repeated_values(kernel: WrappedKernel, result: TuneResult) -> None:
    """Warn if a configuration was much faster in the search than with new values."""
    if not isinstance(kernel, FunctionKernel) or result.checked_on.startswith(GIVEN_VALUES):
        return
    searched = {step.config: step.objective for step in result.trace}
    for candidate in result.candidates:
        if candidate.config is None or candidate.failure or candidate.ratio_low > 1.0:
            continue
        in_search = searched.get(candidate.config, 0.0)
        if not in_search > 0.0:
            continue
        speedup = result.searched_default / in_search
        # On a busy machine the final interval may include what the search saw.
        is_surely_less = candidate.ratio_high < speedup
        if is_surely_less and speedup > MIN_FACTOR * max(candidate.ratio, 1.0):
            knobs = ", ".join(f"{name}={value}" for name, value in candidate.config.items())
            warn(
                f"{kernel.name} with {knobs} was {speedup:.1f}× as fast for equal arguments, and "
                f"{candidate.ratio:.2f}× for new values: if your program repeats its arguments, "
                "name them in pinned=",
                stacklevel=3,
            )
