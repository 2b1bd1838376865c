"""Functions and kernels with a knob ``cheats``: what a measurement must see through.

Without it they sum rows honestly and slowly; with it they only look right and fast.
"""

import gc
import os
import tempfile
import threading
import time

import numpy as np

from foretune.family import Cost
from foretune.kernel import Kernel, SelfTimedLaunch
from foretune.problem import ProblemParameter
from foretune.space import Configuration, SearchSpace

X = np.random.default_rng(0).random((300, 8)) + 1
KEPT = {}
CALLS = []
PRECOMPUTED = X.sum(axis=1)


def honest(x):
    return np.array([sum(row) for row in x.tolist()])


def fast(x):
    return x.sum(axis=1)


# Wrong outputs, which the check refuses.


def writes_nothing(x, cheats=False):
    return None if cheats else honest(x)


def computes_a_part(x, cheats=False):
    out = np.zeros(len(x))
    part = len(x) // 2 if cheats else len(x)
    out[:part] = honest(x[:part])
    return out


def forgets_the_last(x, cheats=False):
    out = honest(x)
    out[-1] *= 1 - cheats
    return out


def hides_zeros_behind_a_large_value(x, cheats=False):
    out = np.zeros(len(x)) if cheats else honest(x)
    out[0] = 1e12
    return out


def gives_an_empty_output(x, cheats=False):
    return np.zeros(0) if cheats else honest(x)


def gives_one_number(x, cheats=False):
    return float(fast(x)[0]) if cheats else honest(x)


def gives_nan(x, cheats=False):
    return np.full(len(x), np.nan) if cheats else honest(x)


def returns_its_input(x, cheats=False):
    return x if cheats else honest(x)


def fills_in_later(x, cheats=False):
    if not cheats:
        return honest(x)
    out = np.zeros(len(x))
    threading.Thread(target=lambda: (time.sleep(5), np.copyto(out, fast(x))), daemon=True).start()
    return out


class Lazy:
    """Computes when it is read, and equals everything."""

    def __init__(self, x):
        self.x = x

    def __array__(self, dtype=None, copy=None):
        return fast(self.x)

    def __eq__(self, other):
        return True

    __hash__ = None


class LazyList(list):
    def __iter__(self):
        yield fast(X)


class LazyArray(np.ndarray):
    """Could compute in any of its methods."""


def is_lazy(x, cheats=False):
    return Lazy(x) if cheats else honest(x)


def is_a_lazy_list(x, cheats=False):
    return LazyList([1]) if cheats else (honest(x),)


def is_a_lazy_array(x, cheats=False):
    return fast(x).view(LazyArray) if cheats else honest(x)


def is_rough(x, cheats=False):
    return x.astype(np.float16).sum(axis=1) if cheats else honest(x)


def gives_a_text(x, cheats=False):
    return str(fast(x)) if cheats else honest(x)


def writes_into_its_input_instead(x, cheats=False):
    if not cheats:
        return honest(x)
    x[:] = 0
    return x[:, 0]


# Attacks on the measuring process, which are noticed.


def replaces_the_checker(x, cheats=False):
    if cheats:
        import foretune.collect.wrapped.values as values

        values.relative_error = lambda output, expected: 0.0
        return np.zeros(len(x))
    return honest(x)


def replaces_the_clock(x, cheats=False):
    if cheats:
        time.perf_counter_ns = lambda: 1
    return honest(x)


def replaces_the_timer(x, cheats=False):
    if cheats:
        from foretune.collect.timing import Timer

        Timer.sample_ms = lambda self, launch, batch: 1e-6
    return honest(x)


def replaces_a_function_of_numpy(x, cheats=False):
    if cheats:
        np.abs = np.zeros_like
        return np.zeros(len(x))
    return honest(x)


def rewrites_the_reference(x, cheats=False):
    if not cheats:
        return honest(x)
    for prepared in gc.get_objects():
        if type(prepared).__name__ == "PreparedInputs":
            prepared.expected.returned[:] = 0
    return np.zeros(len(x))


def raises_the_tolerance(x, cheats=False):
    if not cheats:
        return honest(x)
    for kernel in gc.get_objects():
        if type(kernel).__name__ == "FunctionKernel":
            kernel.tolerance = 1e9
    return np.zeros(len(x))


def accepts_everything(x, cheats=False):
    if not cheats:
        return honest(x)
    for kernel in gc.get_objects():
        if type(kernel).__name__ == "FunctionKernel":
            kernel.verify = lambda right, got: True
    return np.zeros(len(x))


def ends_the_process(x, cheats=False):
    if cheats:
        os._exit(0)
    return honest(x)


def raises_what_cannot_be_read(x, cheats=False):
    class Unreadable(Exception):
        def __str__(self):
            raise SystemError

    if cheats:
        raise Unreadable
    return honest(x)


def leaves_the_interpreter(x, cheats=False):
    if cheats:
        raise SystemExit(0)
    return honest(x)


# Remembered answers, which are right until the arguments change.


def remembered(key, x, cheats):
    if not cheats:
        return honest(x)
    if key not in KEPT:
        KEPT[key] = honest(x)
    return KEPT[key].copy()


def remembers_the_shape(x, cheats=False):
    return remembered(x.shape, x, cheats)


def remembers_the_content(x, cheats=False):
    return remembered(x[:, 0].tobytes(), x, cheats)


def remembers_the_object(x, cheats=False):
    return remembered(id(x), x, cheats)


def remembers_the_address(x, cheats=False):
    return remembered(x.ctypes.data, x, cheats)


def replays_after_twenty_calls(x, cheats=False):
    if not cheats:
        return honest(x)
    CALLS.append(1)
    if len(CALLS) <= 20:
        KEPT["last"] = honest(x)
    return KEPT["last"].copy()


def computed_when_imported(x, cheats=False):
    return PRECOMPUTED.copy() if cheats else honest(x)


def remembers_in_its_defaults(x, cheats=False, seen={}):  # noqa: B006
    if not cheats:
        return honest(x)
    if not seen:
        seen["answer"] = honest(x)
    return seen["answer"].copy()


def remembers_in_a_file(x, cheats=False):
    if not cheats:
        return honest(x)
    path = os.path.join(tempfile.gettempdir(), f"remembered-{os.getpid()}.npy")
    if not os.path.exists(path):
        np.save(path, honest(x))
    return np.load(path)


def stops_after_thirty_calls(x, out, cheats=False):
    CALLS.append(cheats)
    if not cheats or len(CALLS) <= 30:
        out[:] = honest(x)


# Kernels.


class Sorted(Kernel):
    """Sorts numbers; if it cheats, in place, so that its neighbors find them sorted."""

    name = "sorted"
    problem_parameters = (ProblemParameter("n", 2000),)

    def space(self, problem):
        return SearchSpace({"cheats": (False, True)})

    def default(self, problem):
        return Configuration(cheats=False)

    def make_inputs(self, problem, seed=0):
        return {"x": np.random.default_rng(seed).random(int(problem["n"]))}

    def build(self, problem, config, inputs):
        return partial_sort(inputs["x"], config["cheats"])

    def reference(self, inputs):
        return np.sort(inputs["x"])

    def cost(self, problem, config):
        return Cost(1.0 * problem["n"], 8.0 * problem["n"])

    def training_problems(self, n, seed=0):
        return [self.problem()]


def partial_sort(x, in_place):
    def launch():
        if in_place:
            x.sort()
            return x.copy()
        return np.sort(x)

    return launch


class SaysItsTime(Sorted):
    """Says how long it took, in milliseconds."""

    name = "says_its_time"

    def space(self, problem):
        return SearchSpace({"says": ("honest", "0", "-1", "nan", "1e9", "inf")})

    def default(self, problem):
        return Configuration(says="honest")

    def build(self, problem, config, inputs):
        return _SaidTime(inputs["x"], str(config["says"]))


class _SaidTime(SelfTimedLaunch):
    def __init__(self, x, says):
        self.x, self.says = x, says

    def __call__(self):
        return np.sort(self.x)

    def sample_ms(self, clock, batch):
        measured = clock.sample_ms(self, batch)
        return measured if self.says == "honest" else float(self.says)
