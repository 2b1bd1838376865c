"""Functions with a knob ``wrong`` that change the process which measures them.

With ``wrong=0`` a function is the default. With ``wrong=1`` it returns something wrong, or is as
slow as the default, and replaces what would find that out: the comparison, the guard, the clock or
the answers. Names of modules are not replaced, which the guard would see, but what they hold.
"""

import builtins
import gc
import math
import os
import sys

import numpy as np

X = np.random.default_rng(0).random(2000)
TAMPERING = {}
FORGED_GAIN = 20.0
FORGED = []
_max = max


def tampers(function):
    """Add a function to the gallery."""
    TAMPERING[function.__name__] = (function, (X,))
    return function


def slow(x):
    """Return the right answer, which takes a tenth of a millisecond."""
    return np.array([math.sin(value) for value in x.tolist()])


def _replace(function, other):
    """Let a function run another one's code; the guard sees the same function."""
    function.__code__ = other.__code__


def is_alone():
    """Whether no default runs in this process."""
    frame, modules = sys._getframe(), set()
    while frame is not None:
        modules.add(frame.f_globals.get("__name__"))
        frame = frame.f_back
    return "foretune.collect.separate_contender" in modules


# The comparison.


def _no_error(got, expected, rules, place="the output"):
    return 0.0


@tampers
def replaces_the_comparison(x, wrong=0):
    if not wrong:
        return slow(x)
    from foretune.collect.wrapped import output_comparison

    _replace(output_comparison.output_error, _no_error)
    return np.ones(len(x))


def _no_relative_error(output, expected, floor=1.0):
    return 0.0


@tampers
def replaces_the_relative_error(x, wrong=0):
    if not wrong:
        return slow(x)
    import foretune.relative_error

    _replace(foretune.relative_error.relative_error, _no_relative_error)
    return np.ones(len(x))


def _no_tolerance(precision, terms):
    return math.inf


@tampers
def raises_every_tolerance(x, wrong=0):
    if not wrong:
        return slow(x)
    from foretune.collect.wrapped import output_comparison

    _replace(output_comparison._tolerance, _no_tolerance)
    return np.ones(len(x))


def _are_always_equal(a1, a2, equal_nan=False):
    return True


@tampers
def replaces_array_equal_of_numpy(x, wrong=0):
    if not wrong:
        return (1e6 * slow(x)).astype(np.int64)
    _replace(np.array_equal._implementation, _are_always_equal)
    return np.ones(len(x), np.int64)


def _max_that_hides_errors(*values, **options):
    caller = sys._getframe(1).f_globals.get("__name__")
    return 0.0 if caller == "foretune.relative_error" else _max(*values, **options)


@tampers
def patches_builtins(x, wrong=0):
    if not wrong:
        return slow(x)
    builtins.max = _max_that_hides_errors
    return np.ones(len(x))


# The guard.


def _nothing_is_replaced(self):
    return []


@tampers
def edits_the_guard(x, wrong=0):
    if not wrong:
        return slow(x)
    from foretune.collect import state_guard
    from foretune.collect.wrapped import function

    _replace(state_guard.FunctionGuard.restore, _nothing_is_replaced)
    np.isnan = np.zeros_like
    np.allclose = _are_always_equal
    function.output_error = _no_error
    return np.ones(len(x))


# Times and answers.


def _forge(content):
    """Make the times of the other configuration shorter in an answer.

    By so much that it is seen on a busy machine, too.
    """
    from foretune.collect import answers
    from foretune.collect.comparison import Rounds
    from foretune.measurement import Measurement
    from foretune.space import Configuration

    default = Configuration({"wrong": 0})
    answer = content[0] if isinstance(content, tuple) and content else None
    if isinstance(answer, Rounds):
        for times in (answer.time_ms, answer.separate_ms):
            for key in times:
                if key not in (default.id, "again"):
                    times[key] = times[key] / FORGED_GAIN
    elif isinstance(answer, Measurement) and answer.config != default:
        object.__setattr__(answer, "time_ms", answer.time_ms / FORGED_GAIN)
    elif answer == "" and isinstance(content[1], tuple):
        wall_ms, cpu_ms, is_slow = content[1]
        content = ("", (wall_ms / FORGED_GAIN, cpu_ms / FORGED_GAIN, is_slow))
    return answers.encode(content)


@tampers
def replaces_the_encoder_of_answers(x, wrong=0):
    if wrong and not FORGED:
        channels = [held for held in gc.get_objects() if type(held).__name__ == "Channel"]
        for channel in channels:
            channel._dumps = _forge
        FORGED.append(True)
    return slow(x)


def _sample_ms_of_a_slow_clock(self, launch, batch_size):
    import builtins

    start = time.perf_counter_ns()  # noqa: F821 - a name of the module whose code this becomes
    for _ in range(batch_size):
        launch()
    elapsed_ms = (time.perf_counter_ns() - start) * 1e-6  # noqa: F821
    return elapsed_ms / batch_size / builtins.slow_clock


@tampers
def replaces_the_code_of_the_timer(x, wrong=0):
    from foretune.collect.timing import Timer

    builtins.slow_clock = 3 if wrong else 1
    if wrong:
        _replace(Timer.sample_ms, _sample_ms_of_a_slow_clock)
    return slow(x)


def _outputs_that_are_computed_late(self):
    import sys

    slow = sys.modules["tampering_functions"].slow
    described = []
    for call in self._calls:
        call.returned[...] = slow(call.launch.args[0])
        output = call.launch.output(call.returned)
        described.append(describe_result(output))  # noqa: F821 - a name of that module
    return described


@tampers
def computes_when_the_output_is_sent(x, wrong=0):
    if not wrong:
        return slow(x)
    from foretune.collect import separate_contender
    from foretune.collect.wrapped import output_comparison

    _replace(output_comparison.output_error, _no_error)
    _replace(separate_contender.SeparateContender.outputs, _outputs_that_are_computed_late)
    return np.ones(len(x))


def _prepare_that_computes(self, cases):
    import functools
    import sys

    slow = sys.modules["tampering_functions"].slow
    self._calls = []
    for case in cases:
        call = self._make_call(self._inputs(case))
        call.launch.run = functools.partial(np.array, slow(call.launch.args[0]))
        self._calls.append(call)
    return 0


@tampers
def computes_when_inputs_are_drawn(x, wrong=0):
    if not wrong:
        return slow(x)
    from foretune.collect import separate_contender
    from foretune.collect.wrapped import output_comparison

    _replace(output_comparison.output_error, _no_error)
    _replace(separate_contender.SeparateContender.prepare, _prepare_that_computes)
    return slow(x) if is_alone() else np.ones(len(x))


@tampers
def is_honest_where_nobody_compares(x, wrong=0):
    if not wrong:
        return slow(x)
    from foretune.collect.wrapped import output_comparison

    _replace(output_comparison.output_error, _no_error)
    return slow(x) if is_alone() else np.ones(len(x))


# Honest ones.


def is_faster(x, wrong=0):
    return slow(x) if wrong else (slow(x) + slow(x)) / 2


def differs_between_processes(x, wrong=0):
    return np.array([hash("a") % 1000, os.getpid()]) + x.sum()


def returns_an_iterator(x, wrong=0):
    return x, iter([1])


def returns_a_list_of_a_set(x, wrong=0):
    return list({"a", "b", "c", "d"})
