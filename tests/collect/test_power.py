"""Tests power meters on fake counters: `collect/power.py`."""

import math
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from foretune.collect import power
from foretune.collect.power import NvmlMeter, PowerMeter, RaplMeter, Window, slope_w
from foretune.errors import ForetuneError, MissingExtra
from foretune.registry import load, registered
from foretune.testing import check_meter

RANGE_UJ = 262_143_328_850


class Zones:
    """A power-capping tree as Linux shows it."""

    def __init__(self, root):
        self.root = root
        for zone, name in {
            "intel-rapl:0": "package-0",
            "intel-rapl:0:0": "core",  # inside package-0
            "intel-rapl:1": "package-1",
            "intel-rapl:2": "psys",  # the whole platform
        }.items():
            (root / zone).mkdir(parents=True)
            (root / zone / "name").write_text(f"{name}\n")
            (root / zone / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
            self.set(zone, 1_000_000)
        (root / "intel-rapl").mkdir()

    def set(self, zone, energy_uj):
        (self.root / zone / "energy_uj").write_text(f"{energy_uj}\n")


@pytest.fixture
def zones(tmp_path):
    return Zones(tmp_path)


class TestWindow:
    def test_power_is_energy_over_time(self):
        window = Window(joules=3.0, seconds=0.6)
        assert window.power_w == pytest.approx(5.0)

    def test_open_window_has_no_values(self):
        assert math.isnan(Window().power_w)


class TestRapl:
    def test_packages_are_summed(self, zones):
        meter = RaplMeter(root=zones.root)
        assert meter.unavailable_because() is None
        with meter.window() as window:
            zones.set("intel-rapl:0", 3_500_000)
            zones.set("intel-rapl:0:0", 3_000_000)
            zones.set("intel-rapl:1", 2_000_000)
            zones.set("intel-rapl:2", 9_000_000)
        assert window.joules == pytest.approx(3.5)
        assert window.seconds > 0
        assert window.power_w == pytest.approx(3.5 / window.seconds)

    def test_counter_wraps_around(self, zones):
        meter = RaplMeter(root=zones.root)
        zones.set("intel-rapl:0", RANGE_UJ - 1_000_000)
        meter.start()
        zones.set("intel-rapl:0", 500_000)
        assert meter.stop() == pytest.approx(1.5)

    def test_unmoved_counter_is_nan(self, zones):
        with RaplMeter(root=zones.root).window() as window:
            pass
        assert math.isnan(window.joules)
        assert math.isnan(window.power_w)

    @pytest.mark.parametrize("when", ["before", "within"])
    def test_vanished_counter_is_nan(self, zones, when):
        meter = RaplMeter(root=zones.root)
        if when == "before":
            (zones.root / "intel-rapl:0/energy_uj").unlink()
        meter.start()
        (zones.root / "intel-rapl:0/energy_uj").unlink(missing_ok=True)
        assert math.isnan(meter.stop())

    def test_missing_counters_say_why(self, tmp_path):
        for root in (tmp_path, tmp_path / "nothing"):
            assert "no energy counter" in RaplMeter(root=root).unavailable_because()

    def test_unreadable_counters_say_how_to_allow(self, zones, monkeypatch):
        read_text = Path.read_text

        def guarded(path, *args, **named):
            if path.name == "energy_uj":
                raise PermissionError(13, "Permission denied")
            return read_text(path, *args, **named)

        monkeypatch.setattr(Path, "read_text", guarded)
        meter = RaplMeter(root=zones.root)
        assert "sudo chmod a+r" in meter.unavailable_because()
        meter.start()
        assert math.isnan(meter.stop())

    def test_garbled_counter_says_why(self, zones):
        zones.set("intel-rapl:1", "?")
        assert "cannot be read" in RaplMeter(root=zones.root).unavailable_because()


class FakeNvml:
    """A GPU whose counter moves in steps, and a clock that moves when the counter is read."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801
        pass

    def __init__(self, watts=250.0, tick_s=0.1, stop_after_s=2.0, fails_at_s=math.inf):
        self.now_s = 0.0
        self.reads = 0
        self.watts = watts
        self.tick_s = tick_s
        self.stop_after_s = stop_after_s
        self.fails_at_s = fails_at_s
        self.finished = threading.Event()

    def nvmlInit(self):  # noqa: N802
        pass

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        if self.now_s < self.stop_after_s:
            self.reads += 1
            self.now_s = self.reads * 0.005
        else:
            self.finished.set()
        if self.now_s >= self.fails_at_s:
            self.finished.set()
            raise self.NVMLError("GPU is lost")
        ticks = math.floor(self.now_s / self.tick_s + 1e-6)
        return 10_000_000 + round(ticks * self.tick_s * self.watts * 1000)

    def clock(self):
        return self.now_s


@pytest.fixture(autouse=True)
def all_gpus_visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def metered(nvml):
    """Return joules and seconds of a window as long as the fake has something to tell."""
    meter = NvmlMeter(nvml=nvml, poll_s=0.0, clock=nvml.clock)
    meter.start()
    assert nvml.finished.wait(10)
    return meter.stop(), nvml.now_s


class TestNvml:
    @pytest.mark.parametrize("tick_s", [0.02, 0.1])
    @pytest.mark.parametrize("length_s", [0.5, 0.57, 2.03])
    def test_power_is_the_slope_between_ticks(self, tick_s, length_s):
        joules, seconds = metered(FakeNvml(250.0, tick_s, stop_after_s=length_s))
        assert seconds == pytest.approx(length_s, abs=0.006)
        # Readings at both ends would be off by up to a tick: 20 % of half a second.
        assert joules / seconds == pytest.approx(250.0, rel=1e-3)

    @pytest.mark.parametrize("length_s", [0.05, 0.15])
    def test_fewer_than_two_ticks_are_nan(self, length_s):
        joules, _ = metered(FakeNvml(stop_after_s=length_s))
        assert math.isnan(joules)

    def test_idle_counter_is_nan(self):
        joules, _ = metered(FakeNvml(watts=0.0))
        assert math.isnan(joules)

    def test_driver_failure_in_window_is_nan(self):
        joules, _ = metered(FakeNvml(fails_at_s=1.0))
        assert math.isnan(joules)

    def test_window(self):
        nvml = FakeNvml(stop_after_s=1.0)
        with NvmlMeter(nvml=nvml, poll_s=0.0, clock=nvml.clock).window() as window:
            assert nvml.finished.wait(10)
        assert window.joules == pytest.approx(250.0, rel=0.02)

    def test_thread_ends_when_the_kernel_fails(self):
        nvml = FakeNvml()
        with pytest.raises(ZeroDivisionError), NvmlMeter(nvml=nvml, poll_s=0.0).window():
            raise ZeroDivisionError
        assert "foretune-nvml" not in {t.name for t in threading.enumerate()}

    def test_second_window_starts_anew(self):
        nvml = FakeNvml(stop_after_s=0.5)
        meter = NvmlMeter(nvml=nvml, poll_s=0.0, clock=nvml.clock)
        for end_s, watts in ((0.5, 250.0), (1.5, 100.0)):
            nvml.stop_after_s, nvml.watts = end_s, watts
            nvml.finished.clear()
            begin_s = nvml.now_s
            meter.start()
            assert nvml.finished.wait(10)
            assert meter.stop() == pytest.approx(watts * (end_s - begin_s), rel=0.03)

    def test_available(self):
        assert NvmlMeter(nvml=FakeNvml()).unavailable_because() is None

    def test_missing_pynvml_says_why(self, monkeypatch):
        def missing(*args):
            raise MissingExtra("pynvml", "gpu", "metering power")

        monkeypatch.setattr(power, "require", missing)
        assert "pip install '.[gpu]'" in NvmlMeter().unavailable_because()

    def test_missing_driver_says_why(self):
        class NoDriver(FakeNvml):
            def nvmlInit(self):  # noqa: N802
                raise self.NVMLError("Driver Not Loaded")

        reason = NvmlMeter(nvml=NoDriver()).unavailable_because()
        assert "does not answer: Driver Not Loaded" in reason

    def test_unknown_gpu_says_why(self):
        assert "no GPU 3" in NvmlMeter(3, nvml=FakeNvml()).unavailable_because()

    def test_mig_slice_is_not_metered(self):
        class Split(FakeNvml):
            def nvmlDeviceIsMigDeviceHandle(self, handle):  # noqa: N802
                return True

        assert "MIG slice" in NvmlMeter(nvml=Split()).unavailable_because()

    def test_gpu_without_counter_says_why(self):
        class Pascal(FakeNvml):
            def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
                raise self.NVMLError_NotSupported("Not Supported")

        assert "Volta" in NvmlMeter(nvml=Pascal()).unavailable_because()


@pytest.mark.parametrize("name", registered("meters"))
def test_check_meter_on_this_machine(name):
    check_meter(load("meters", name), seconds=0.1)


def test_check_meter_with_fake_counters(zones):
    check_meter(lambda index: RaplMeter(index, zones.root), seconds=0.01)
    check_meter(lambda index: NvmlMeter(index, FakeNvml(), poll_s=0.0), seconds=0.01)


def test_slope_w_is_least_squares():
    assert slope_w([(10.0, 1e6), (10.1, 1e6 + 25.0), (10.3, 1e6 + 75.0)]) == pytest.approx(250.0)
    assert slope_w([(0.0, 0.0), (1.0, 2.0), (2.0, 2.0)]) == pytest.approx(1.0)
    assert math.isnan(slope_w([(0.0, 1.0)]))
    assert math.isnan(slope_w([]))


class Stopwatch(PowerMeter):
    name = "stopwatch"
    device_kind = "cpu"
    reason: str | None = None

    def __init__(self, index=0):
        self.index = index

    def unavailable_because(self):
        return self.reason

    def start(self):
        pass

    def stop(self):
        return 1.0


class Broken(Stopwatch):
    name = "broken"
    reason = "it is broken"


class Gpu(Stopwatch):
    name = "gpu-only"
    device_kind = "gpu"


class Graphs:
    """What ``torch.cuda`` has of graphs; in one, a launch may be refused."""

    def __init__(self, works):
        self.works = works

    class CUDAGraph:
        def replay(self):
            pass

    @contextmanager
    def graph(self, graph):
        if not self.works:
            raise RuntimeError("operation not permitted when stream is capturing")
        yield


@pytest.mark.parametrize(
    ("interface", "time_ms", "launches"),
    [
        (None, 10.0, 2),
        (Graphs(True), 10.0, 2),
        (Graphs(True), 1e-3, power.MAX_CAPTURED),
        (Graphs(False), 10.0, 2),
    ],
)
def test_measure_power_energy_is_of_one_launch(monkeypatch, interface, time_ms, launches):
    for name in ("RAMP_S", "WINDOW_S"):
        monkeypatch.setattr(power, name, 0.0)
    done = []

    class Noting(Stopwatch):
        def start(self):
            done.append("start")

    _, energy_mj = power.measure_power(
        Noting(), lambda: done.append("run"), time_ms, lambda: None, interface
    )
    assert energy_mj == pytest.approx(1e3 / launches)
    assert done[:2] == ["run"] * 2, "it runs for a while before it is metered"


class TestFinding:
    @pytest.fixture
    def register(self, monkeypatch):
        def set_registered(**classes):
            def load(group, name):
                assert group == "meters"
                if isinstance(classes[name], Exception):
                    raise classes[name]
                return classes[name]

            monkeypatch.setattr(power, "registered", lambda group: dict.fromkeys(classes, ""))
            monkeypatch.setattr(power, "load", load)

        return set_registered

    def test_find_meter_takes_first_that_works(self, register):
        register(broken=Broken, gpu=Gpu, good=Stopwatch)
        assert isinstance(power.find_meter("cpu"), Stopwatch)
        assert isinstance(power.find_meter("gpu"), Gpu)
        assert power.find_meter("gpu", 1).index == 1
        assert power.explain_missing_meter("cpu") == ""

    def test_explain_missing_meter_lists_all_reasons(self, register):
        register(broken=Broken, bad=ForetuneError("meter 'bad' cannot be imported: oh"))
        assert power.find_meter("cpu") is None
        reason = power.explain_missing_meter("cpu")
        assert reason == "broken: it is broken; meter 'bad' cannot be imported: oh"
        assert power.explain_missing_meter() == reason

    def test_explain_missing_meter_without_meter_of_kind(self, register):
        register(gpu=Gpu)
        assert power.find_meter("cpu") is None
        assert "no meter is registered for a cpu" in power.explain_missing_meter("cpu")

    @pytest.mark.parametrize("kind", ["cpu", "gpu"])
    def test_find_meter_or_reason_on_this_machine(self, kind):
        assert (power.find_meter(kind) is None) == bool(power.explain_missing_meter(kind))
