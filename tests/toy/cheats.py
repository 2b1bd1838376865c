"""Functions that sum rows, or only look as if they did: what a judge must see through."""

import gc
import os
import threading
import time

import numpy as np

KEPT = {}
CALLS = []


def inputs(n=64, seed=0):
    return (np.random.default_rng(seed).random((n, 32)),)


def reference(x):
    return np.array([row.sum() for row in x])


def slower(x):
    time.sleep(0.002)
    return reference(x)


def honest(x):
    return x.sum(axis=1)


def into(x, out):
    x.sum(axis=1, out=out)


def inputs_into(n=64, seed=0):
    return *inputs(n, seed), np.zeros(n)


def reference_into(x, out):
    out[:] = reference(x)


def remembers_the_shape(x):
    return KEPT.setdefault(x.shape, honest(x))


def remembers_the_address(x):
    return KEPT.setdefault(x.ctypes.data, honest(x))


def remembers_after_the_check(x):
    CALLS.append(1)
    if len(CALLS) <= 5:
        KEPT[x.shape] = honest(x)
    return KEPT[x.shape].copy() if x.shape in KEPT else honest(x)


def gives_what_lies_in_memory(x):
    return np.empty(len(x))


def knows_one_shape(x):
    return honest(x) if len(x) == 64 else np.zeros(len(x))


def fills_in_later(x):
    out = np.zeros(len(x))

    def fill():
        time.sleep(0.02)
        out[:] = honest(x)

    threading.Thread(target=fill).start()
    return out


class Lazy(np.ndarray):
    """An array that would be computed when somebody looks."""


def is_lazy(x):
    return honest(x).view(Lazy)


class Forged:
    """An object that computes when somebody looks, and calls itself an array."""

    def __init__(self, x):
        self.x, self.dtype = x.copy(), x.dtype

    def __array__(self, dtype=None, copy=None):
        return honest(self.x)


Forged.__module__, Forged.__qualname__ = "numpy", "ndarray"


def is_forged(x):
    return Forged(x)


def is_narrow(x):
    return honest(x).astype(np.float32)


def is_rough(x):
    return honest(x.astype(np.float16)).astype(np.float64)


def changes_its_input(x):
    out = honest(x)
    x[:] = 0
    return out


def gives_too_much(x):
    return honest(x), x


def has_another_shape(x):
    return honest(x)[:, None]


def stops_the_clock(x):
    if not CALLS:
        CALLS.append(1)
        (judged,) = (o for o in gc.get_objects() if type(o).__name__ == "IsolatedImplementation")
        judged._clock = lambda: 0
    return reference(x)


def ends_the_process(x):
    os._exit(0)


def raises(x):
    raise ValueError("no such tile")


def forgets_to_write(x, out):
    return None


def constant(n=64, seed=0):
    return (np.ones((n, 32)),)


def replaces_functions_of_the_judge():
    """Called where its bytes are unpickled."""
    import foretune.tune.judge as judge

    judge.output_difference = lambda *arguments: 0.0


class Unpickled:
    def __reduce__(self):
        return replaces_functions_of_the_judge, ()


def sends_a_pickle(x):
    """Send an answer of its own over the connection, with the code to run in it."""
    import pickle

    from foretune.collect.message_channel import Channel

    for channel in gc.get_objects():
        if type(channel) is Channel:
            channel._dumps = pickle.dumps
            channel.send(channel_number(channel), (Unpickled(), True))
    return np.zeros(len(x))


def channel_number(channel):
    frames = [f for f in gc.get_objects() if type(f).__name__ == "frame"]
    return next((f.f_locals["number"] for f in frames if "number" in f.f_locals), 1)


def _lies(x, share):
    real = time.perf_counter_ns
    for implementation in gc.get_objects() if share not in KEPT else ():
        if type(implementation).__name__ == "IsolatedImplementation":
            implementation._clock = lambda: int(real() * share)
            KEPT[share] = True
    return reference(x)


def has_a_slow_clock(x):
    return _lies(x, 0.7)


def has_a_very_slow_clock_and_remembers_the_last_input(x):
    key = x.tobytes()
    if KEPT.get("key") != key:
        KEPT["key"], KEPT["answer"] = key, _lies(x, 0.01)
    return KEPT["answer"].copy()
