"""Interleaved rounds: their order, their inputs, and who is left out."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from toy_kernel import DEVICE, Toy, config

from foretune.collect import InProcessRunner, benchmark, call_times
from foretune.collect import comparison as module
from foretune.collect.comparison import DEFAULT_REPEATED, MIN_ROUNDS
from foretune.collect.timing import Timer
from foretune.collect.wrapped.function import FunctionKernel
from foretune.errors import MissingExtra
from foretune.kernel import WrongResult
from foretune.space import Configuration

PROBLEM = Toy().problem(n=100)
FAST, SLOW = config(), config(work=2)


class Doubling(Toy):
    """Doubles a vector; ``calls`` has the configuration and first input of every call."""

    tolerance = 1e-9

    def __init__(self):
        self.calls, self.built = [], []

    def build(self, problem, config, inputs):
        self.built.append(config)
        output = np.empty(8)

        def launch():
            self.calls.append((config.id, float(inputs["x"][0])))
            return np.multiply(inputs["x"], 2, out=output)

        return launch

    def make_inputs(self, problem, seed=0):
        rng = np.random.default_rng(seed)
        return {"x": rng.random(8), "w": rng.random(8)}

    def reference(self, inputs):
        return 2 * inputs["x"]

    def library(self, problem, inputs):
        return None


def compare(kernel, *configs, max_seconds=0.0, problem=PROBLEM, seed=0):
    runner = InProcessRunner(DEVICE)
    return runner.compare_interleaved(kernel, problem, configs or (FAST, SLOW), max_seconds, seed)


@pytest.fixture
def timed(monkeypatch):
    """Return a function that calls another one before and after every timed call."""

    def watch(before, after):
        for name in ("sample_ms", "time_loaded_ms"):
            original = getattr(module, name)

            def watched(*given, original=original):
                before()
                result = original(*given)
                after()
                return result

            monkeypatch.setattr(module, name, watched)

    return watch


def test_comparison_runs_all_in_every_round_and_default_twice():
    rounds = compare(Doubling())
    assert rounds.time_ms.keys() == {FAST.id, SLOW.id, DEFAULT_REPEATED}
    assert {len(times) for times in rounds.time_ms.values()} == {MIN_ROUNDS}
    assert all((times > 0).all() for times in rounds.time_ms.values())
    assert rounds.failures == {}


@pytest.mark.parametrize("max_seconds", [0.0, 0.01], ids=["single calls", "bursts"])
def test_comparison_every_timed_call_has_new_inputs(monkeypatch, timed, max_seconds):
    monkeypatch.setattr(module, "SLOW_MS", 1e9)  # on a busy machine, too
    kernel = Doubling()
    seen, of_timed = set(), []

    def before():
        seen.update(x for _, x in kernel.calls)

    def after():
        of_timed.append(kernel.calls[-1])
        assert kernel.calls[-1][1] not in seen, "it has seen these inputs before"

    timed(before, after)
    compare(kernel, FAST, SLOW, max_seconds=max_seconds)
    assert len(of_timed) >= 3 * (MIN_ROUNDS + 1)
    orders = {tuple(key for key, _ in of_timed[i : i + 3]) for i in range(0, len(of_timed), 3)}
    assert all(len(set(order)) == 2 for order in orders), "each contender has its turn"
    assert len(orders) > 1


def test_comparison_untimed_calls_have_inputs_of_earlier_calls(monkeypatch, timed):
    monkeypatch.setattr(module, "SLOW_MS", 1e9)  # on a busy machine, too
    kernel = Doubling()
    of_timed = set()
    timed(lambda: None, lambda: of_timed.add(kernel.calls[-1][1]))
    compare(kernel, FAST, SLOW, max_seconds=0.01)
    values = [x for _, x in kernel.calls]
    built_with = values[0]
    assert set(values) - {built_with} <= of_timed


def test_comparison_kept_result_of_other_contender_is_useless(timed):
    kept, hits, hits_while_timed = {}, [], []

    class Shared(Doubling):
        def build(self, problem, config, inputs):
            def launch():
                key = inputs["x"].tobytes()
                if config == SLOW and key in kept:
                    hits.append(key)
                kept.setdefault(key, 2 * inputs["x"])
                return kept[key].copy()

            return launch

    timed(hits.clear, lambda: hits_while_timed.append(len(hits)))
    compare(Shared(), FAST, SLOW, max_seconds=0.01)
    assert hits_while_timed
    assert not any(hits_while_timed)


def test_processes_build_in_different_orders():
    orders = set()
    for seed in range(6):
        kernel = Doubling()
        compare(kernel, seed=seed)
        orders.add(tuple(kernel.built))
    assert len(orders) > 1


def test_comparison_library_call_runs_in_every_round():
    times = compare(Toy(), FAST).time_ms
    assert times.keys() == {FAST.id, DEFAULT_REPEATED, "library:NumPy"}
    assert len(times["library:NumPy"]) == MIN_ROUNDS


def test_another_seed_gives_other_inputs(monkeypatch):
    monkeypatch.setattr(module, "SLOW_MS", 1e9)  # on a busy machine, too
    kernels = [Doubling() for _ in range(3)]
    for kernel, seed in zip(kernels, (1, 1, 2), strict=True):
        compare(kernel, seed=seed)
    first, again, other = ([x for _, x in kernel.calls] for kernel in kernels)
    assert first == again
    assert not set(first) & set(other)


def test_slow_launches_are_not_warmed_up(monkeypatch):
    monkeypatch.setattr(module, "SLOW_MS", 0.0)
    kernel = Doubling()
    compare(kernel, FAST, SLOW)
    assert len(kernel.calls) == 6 + 6 + 3 * MIN_ROUNDS


class Cheating(Doubling):
    """The slow configuration cheats."""

    def __init__(self, cheat):
        super().__init__()
        self.cheat = cheat

    def build(self, problem, config, inputs):
        honest = super().build(problem, config, inputs)
        return self.cheat(honest) if config == SLOW else honest


def once(honest):
    """Compute in the first two calls, which are checked, and return that for ever."""
    results = []

    def launch():
        if len(results) < 2:
            results.append(honest().copy())
        return results[-1]

    return launch


def every_other(honest):
    """Compute in every other call only."""
    state = {"calls": 0, "result": None}

    def launch():
        state["calls"] += 1
        if state["calls"] % 2 or state["result"] is None:
            state["result"] = honest().copy()
        return state["result"]

    return launch


def after_a_while(honest):
    """Stop computing when everything seems to be checked."""
    state = {"calls": 0, "result": None}

    def launch():
        state["calls"] += 1
        if state["calls"] < 4:
            state["result"] = honest().copy()
        return state["result"]

    return launch


def writes_nothing(honest):
    output = honest()
    state = {"calls": 0}

    def launch():
        state["calls"] += 1
        return honest() if state["calls"] < 4 else output

    return launch


def wrong_result(honest):
    state = {"calls": 0}

    def launch():
        state["calls"] += 1
        if state["calls"] > 3:
            raise WrongResult("its own check fails")
        return honest()

    return launch


def fails(honest):
    state = {"calls": 0}

    def launch():
        state["calls"] += 1
        if state["calls"] > 3:
            raise ValueError("out of luck\nand lines")
        return honest()

    return launch


@pytest.mark.parametrize(
    ("cheat", "reason"),
    [
        (once, "relative error .* on new inputs"),
        (every_other, "relative error .* on new inputs"),
        (after_a_while, "relative error .* on new inputs"),
        (writes_nothing, "relative error .* on new inputs"),
        (wrong_result, "^its own check fails$"),
        (fails, "^ValueError: out of luck$"),
    ],
)
def test_comparison_cheat_or_failure_is_left_out_with_reason(cheat, reason):
    rounds = compare(Cheating(cheat))
    assert rounds.time_ms.keys() == {FAST.id, DEFAULT_REPEATED}
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(rounds.failures[SLOW.id])


class InPlace(Doubling):
    """All write to one array; the slow configuration stops computing after the first checks."""

    def make_inputs(self, problem, seed=0):
        return {**super().make_inputs(problem, seed), "out": np.zeros(8)}

    def build(self, problem, config, inputs):
        calls = itertools.count()

        def launch():
            factor = 0 if config == SLOW and next(calls) > 2 else 2
            return np.multiply(inputs["x"], factor, out=inputs["out"])

        return launch


def test_comparison_judges_each_by_its_own_output():
    assert compare(InPlace()).failures.keys() == {SLOW.id}


def test_comparison_foreign_error_ends_it(monkeypatch):
    class LacksPackage(Doubling):
        def build(self, problem, config, inputs):
            raise MissingExtra("toylib", "toy", "the toy kernel")

    class LostDevice(Timer):
        def wait(self):
            raise RuntimeError("the device is gone")

    with pytest.raises(MissingExtra):
        compare(LacksPackage())
    monkeypatch.setattr(benchmark, "timer_for", lambda *_: LostDevice())
    with pytest.raises(RuntimeError, match="the device is gone"):
        compare(Cheating(fails))


class Packing(Doubling):
    """Reads ``w`` when it is built."""

    def build(self, problem, config, inputs):
        packed = inputs["w"].copy()
        return lambda: packed * inputs["x"]

    def reference(self, inputs):
        return inputs["w"] * inputs["x"]


def test_weights_keep_the_values_that_were_packed():
    assert compare(Packing()).failures == {}
    other = Packing()
    other.constant_inputs = ()
    assert compare(other).failures.keys() == {FAST.id, SLOW.id, DEFAULT_REPEATED}


def test_inputs_of_changing_shape_stay():
    class Growing(Doubling):
        def make_inputs(self, problem, seed=0):
            return {"x": np.random.default_rng(seed).random(8 + seed % 5)}

        def build(self, problem, config, inputs):
            return lambda: 2 * inputs["x"]

    assert compare(Growing()).failures == {}


def test_comparison_replaces_arguments_in_place():
    seen = set()

    def double(x, out, way=0):
        seen.add(float(x[0]))
        np.multiply(x, 2, out=out)

    def make(n=4, seed=0):
        return np.random.default_rng(seed).random(n), np.zeros(n)

    kernel = FunctionKernel(double, {"way": (0, 1)}, make)
    configs = list(kernel.space(kernel.problem()))
    rounds = compare(kernel, *configs, problem=kernel.problem())
    assert rounds.failures == {}
    assert len(seen) > MIN_ROUNDS


class Spinning(Doubling):
    """Takes more than `SLOW_MS` of this thread's CPU time."""

    def build(self, problem, config, inputs):
        honest = super().build(problem, config, inputs)

        def launch():
            end = time.thread_time() + 2 * module.SLOW_MS * 1e-3
            while time.thread_time() < end:
                pass
            return honest()

        return launch


def test_slow_rounds_end_early(monkeypatch):
    monkeypatch.setattr(module, "MAX_ROUNDS_S", 0.004)
    assert len(compare(Spinning()).time_ms[FAST.id]) < MIN_ROUNDS


class Elsewhere(Spinning):
    """Computes in another thread, which costs this one next to nothing."""

    def build(self, problem, config, inputs):
        honest, pool = super().build(problem, config, inputs), ThreadPoolExecutor(1)
        return lambda: pool.submit(honest).result()


def test_work_of_other_threads_counts(monkeypatch):
    monkeypatch.setattr(call_times, "_waits", lambda: 0)
    assert compare(Elsewhere()).time_ms[FAST.id].min() >= 2 * module.SLOW_MS


def half_a_millisecond(timed, *given):
    return 0.5 if timed(*given) else 0.0


def test_fast_launches_are_timed_by_the_clock(monkeypatch):
    monkeypatch.setattr(call_times, "_waits", lambda: 0)
    for name in ("sample_ms", "time_loaded_ms"):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, partial(half_a_millisecond, original))
    assert set(compare(Spinning()).time_ms[FAST.id]) == {0.5}


class DoublingClock(Timer):
    """A device's: says twice the time that passed."""

    def sample_ms(self, launch, batch_size):
        return 2 * super().sample_ms(launch, batch_size)


def test_comparison_device_clock_counts_on_busy_host(monkeypatch):
    monkeypatch.setattr(benchmark, "timer_for", lambda *_: DoublingClock())
    times = compare(Spinning()).time_ms[FAST.id]
    assert times.min() > 3.9 * module.SLOW_MS


def test_comparison_host_time_of_slow_launches_is_cpu_time(monkeypatch):
    monkeypatch.setattr(call_times, "_waits", lambda: 0)
    walls = []

    class Recorder(Spinning):
        def relative_error(self, output, expected):
            return 0.0

    def a_thousand_times(timed, *given):
        walls.append(timed(*given))
        return 1e3 * walls[-1]

    for name in ("sample_ms", "time_loaded_ms"):
        monkeypatch.setattr(module, name, partial(a_thousand_times, getattr(module, name)))
    times = compare(Recorder()).time_ms[FAST.id]
    assert np.nanmax(times) < 1e3 * min(walls), "not what the host's clock was made to say"


def in_threads(x, threads=1):
    """Work for a while in one or two threads."""
    parts = np.array_split(x, threads)
    if threads == 1:
        return float(np.sin(parts[0]).sum())
    with ThreadPoolExecutor(threads) as pool:
        return sum(float(part.sum()) for part in pool.map(np.sin, parts))


def test_rounds_say_how_much_runs_in_other_threads():
    kernel = FunctionKernel(in_threads, {"threads": [1, 2]}, (np.ones(200_000),))
    alone, shared = Configuration(threads=1), Configuration(threads=2)

    rounds = compare(kernel, alone, shared, problem=kernel.problem())

    assert rounds.other_threads[alone.id] < 0.1
    assert rounds.other_threads[shared.id] > 0.25
    assert 0.0 < rounds.cores[alone.id] < 1.2
