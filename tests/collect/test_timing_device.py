"""Tests timing by events in a device's queue: `collect/timing.py`, and benchmarks on a GPU."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_clock import FakeClock
from toy_kernel import DEVICE, Toy, config

from foretune.collect import InProcessRunner, IsolatedRunner, Timing, benchmark, power, timing
from foretune.collect.power import PowerMeter
from foretune.collect.timing import CPU_TIMER, DeviceTimer, time_launch, timer_for
from foretune.device import Device
from foretune.errors import MeasurementError
from foretune.measurement import Status
from foretune.problem import Problem

PROBLEM = Toy().problem(n=100)
TIMING = Timing(max_seconds=0.03, warmup_s=0.0)


class FakeGpu:
    """A queue on a fake clock: launches advance the clock, and events read it."""

    def __init__(self):
        self.clock = FakeClock()
        self.log = []

    def work(self, name, *times_ms):
        """Return a launch that takes the times in turn, then the last of them."""
        work = self.clock.launch(*times_ms)

        def launch():
            self.log.append(name)
            work()

        return launch

    def timer(self, **options):
        def before(launches, host_s):
            self.log.append(f"before {launches}")
            self.clock.sleep(1.0)

        return DeviceTimer(lambda: FakeEvent(self.clock), lambda: None, before, **options)


class FakeEvent:
    def __init__(self, clock):
        self.clock = clock
        self.over = False

    def record(self):
        self.at_ms = 1e3 * self.clock.now_s

    def synchronize(self):
        self.over = True

    def elapsed_time(self, end):
        assert end.over, "the device may not be there yet"
        return end.at_ms - self.at_ms


@pytest.fixture
def gpu(monkeypatch):
    gpu = FakeGpu()
    monkeypatch.setattr(timing, "time", gpu.clock)
    monkeypatch.setattr(power, "time", gpu.clock)
    return gpu


def test_device_timer_cold_cache_flush_is_not_timed(gpu):
    limits = Timing(max_seconds=600, warmup_s=0.0, relative_width=-1.0, max_repeats=6)
    samples = time_launch(gpu.work("a", 9.0, 1.0), limits, timer=gpu.timer())
    assert samples == pytest.approx(np.ones(6))  # the first launch was the warm-up
    assert gpu.log == ["before 1", "a"] * 7


def test_device_timer_warm_cache_times_short_launches_together(gpu):
    timer = gpu.timer(max_launches=20)
    limits = Timing(max_seconds=600, warmup_s=0.0, relative_width=-1.0, max_repeats=2)
    samples = time_launch(gpu.work("a", 1 / 128), limits, timer=timer)
    assert samples == pytest.approx([1 / 128, 1 / 128])
    assert gpu.log == ["before 1", "a", *["before 7", *["a"] * 7] * 2]
    assert timer.batch_size(0.0001) == 20  # the number that can be queued while the device waits
    assert timer.batch_size(7.0) == 1


def test_time_launch_device_timer_stops_by_same_rules(gpu):
    limits = Timing(warmup_s=0.0, max_seconds=600, max_repeats=100)
    steady = time_launch(gpu.work("a", 2.0), limits, timer=gpu.timer())
    assert len(steady) == 7  # checked after five, which have no interval yet, and seven
    restless = gpu.work("b", *np.random.default_rng(0).uniform(1, 2, 500))
    assert len(time_launch(restless, limits, timer=gpu.timer())) == 100
    slow = gpu.work("c", *np.random.default_rng(0).uniform(5, 9, 500))
    hopeless = time_launch(slow, limits, incumbent_ms=1.0, timer=gpu.timer())
    assert len(hopeless) == limits.min_repeats


class OnGpu(Toy):
    device_kind = "gpu"


class TimesItself(OnGpu):
    reports_own_time = True


class FakeTorch:
    """As much of torch as timing takes, on a fake GPU with 256 MiB of cache."""

    int8 = "int8"

    def __init__(self, gpu):
        self.log, self.cuda = gpu.log, self
        self.Event = lambda enable_timing: FakeEvent(gpu.clock)

    def is_available(self):
        return True

    def set_device(self, index):
        self.log.append(f"device {index}")

    def get_device_properties(self, index):
        return SimpleNamespace(L2_cache_size=2**28)

    def empty(self, size, dtype, device):
        return SimpleNamespace(zero_=lambda: self.log.append(f"flush {size} bytes of {device}"))

    def synchronize(self):
        self.log.append("wait")

    def _sleep(self, cycles):
        self.log.append(f"sleep {cycles // timing.DELAY_CYCLES}")


@pytest.mark.parametrize(
    ("cache", "most", "before"),
    [("cold", 1, [f"flush {2**29} bytes of cuda:1", "sleep 2"]), ("warm", 20, ["sleep 21"])],
)
def test_timer_for_warm_problem_does_not_flush(gpu, monkeypatch, cache, most, before):
    timing._cached_gpu_timer.cache_clear()
    monkeypatch.setattr(timing, "require", lambda *_: FakeTorch(gpu))
    timer = timer_for(OnGpu(), Problem(n=1, cache=cache), Device("A GPU", "gpu", index=1))
    count = timer.batch_size(0.0)
    assert timer.sample_ms(gpu.work("a", 2.0), count) == pytest.approx(2.0)
    assert gpu.log == ["device 1", *before, *["a"] * most]
    assert timer_for(TimesItself(), PROBLEM, Device("A GPU", "gpu")) is CPU_TIMER
    timing._cached_gpu_timer.cache_clear()


def test_device_timer_delays_until_all_kernels_are_queued(gpu, monkeypatch):
    timing._cached_gpu_timer.cache_clear()
    monkeypatch.setattr(timing, "require", lambda *_: FakeTorch(gpu))
    cycles = []
    monkeypatch.setattr(FakeTorch, "_sleep", lambda self, n: cycles.append(n))
    timer = timer_for(OnGpu(), PROBLEM, Device("A GPU", "gpu", index=1))

    many, slow = lambda: gpu.clock.sleep(2e-3), lambda: gpu.clock.sleep(0.05)
    for launch in (many, lambda: None, many, slow, slow):
        timer.sample_ms(launch, 1)
    first, other, again, once, twice = cycles
    assert first == other == once == 2 * timing.DELAY_CYCLES
    assert again >= 2e-3 * timing.CYCLES_PER_S  # other launches in between do not count
    assert twice == timing.MAX_DELAY_S * timing.CYCLES_PER_S
    timing._cached_gpu_timer.cache_clear()


def test_timer_for_interpreted_kernel_is_host_timer(monkeypatch):
    assert timer_for(Toy(), PROBLEM, DEVICE) is CPU_TIMER
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert timer_for(OnGpu(), PROBLEM, Device("A GPU", "gpu")) is CPU_TIMER  # interpreted


class Logged(PowerMeter):
    """Logs when it is started and stopped."""

    name, device_kind = "logged", "cpu"

    def __init__(self, log):
        self.log = log

    def unavailable_because(self):
        return None

    def start(self):
        self.log.append("start")

    def stop(self):
        self.log.append("stop")
        return 1.0


def test_benchmarker_meter_reads_idle_device(gpu, monkeypatch):
    class Waited(DeviceTimer):
        def wait(self):
            gpu.log.append("wait")

    timer = Waited(lambda: FakeEvent(gpu.clock), lambda: None, lambda launches, host_s: None)
    monkeypatch.setattr(benchmark, "timer_for", lambda *_: timer)
    monkeypatch.setattr(benchmark, "find_meter", lambda kind, index: Logged(gpu.log))
    monkeypatch.setattr(power, "RAMP_S", 0.0)
    monkeypatch.setattr(power, "WINDOW_S", 0.05)

    class Queued(Toy):
        def build(self, problem, config, inputs):
            work = gpu.work("launch", 4.0)

            def launch():
                work()
                return inputs["x"].sum()

            return launch

    measured = next(InProcessRunner(DEVICE, TIMING).run(Queued(), PROBLEM, [config()]))
    assert measured.time_ms == pytest.approx(4.0)
    start, stop = gpu.log.index("start"), gpu.log.index("stop")
    assert gpu.log[start - 1] == gpu.log[stop - 1] == "wait"
    window = gpu.log[start + 1 : stop]
    assert window == 3 * (["launch"] * 5 + ["wait"])  # 20 ms of work at a time, for 50 ms
    assert measured.energy_mj == pytest.approx(1e3 / 15)


@pytest.fixture
def fragile(monkeypatch):
    monkeypatch.setattr(benchmark, "timer_for", benchmark.timer_for)  # undoes the import
    import fragile_kernel

    monkeypatch.setattr(fragile_kernel.DEVICE, "broken", False)
    monkeypatch.setattr(benchmark, "timer_for", lambda *_: fragile_kernel.DEVICE)
    return fragile_kernel.Fragile()


def test_isolated_runner_lost_device_costs_one_row(fragile, monkeypatch, tmp_path):
    """The process exchanges its timer when it starts: a kernel that did so would be refused."""
    (tmp_path / "sitecustomize.py").write_text("import fragile_kernel\n")
    toy = str(Path(__file__).parents[1] / "toy")
    path = os.pathsep.join([str(tmp_path), toy, *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    configs = [config(), config("no run"), config("no build"), config()]
    with IsolatedRunner(DEVICE, TIMING, limit_s=20) as runner:
        rows, processes = [], []
        for row in runner.run(fragile, PROBLEM, configs):
            rows.append(row.status)
            processes.append(runner._worker._process)
    statuses = [Status.OK, Status.RUNTIME_ERROR, Status.COMPILE_ERROR, Status.OK]
    assert rows == statuses
    assert processes[0] is not None
    assert processes[1] is None  # it was ended
    assert processes[2] is processes[3] is not processes[0]  # what only failed needs no new one


def test_in_process_runner_lost_device_ends_measuring(fragile):
    runner = InProcessRunner(DEVICE, TIMING)
    assert next(runner.run(fragile, PROBLEM, [config("no run")])).status is Status.RUNTIME_ERROR
    with pytest.raises(MeasurementError, match="measure with IsolatedRunner"):
        next(runner.run(fragile, PROBLEM, [config()]))
    with pytest.raises(MeasurementError, match="measure with IsolatedRunner"):
        runner.compare_interleaved(fragile, PROBLEM, [config()])


def test_compare_interleaved_lost_device_ends_measuring(fragile):
    runner = InProcessRunner(DEVICE, TIMING)
    with pytest.raises(RuntimeError, match="illegal"):
        runner.compare_interleaved(fragile, PROBLEM, [config("no run")])
    with pytest.raises(MeasurementError, match="measure with IsolatedRunner"):
        next(runner.run(fragile, PROBLEM, [config()]))
