"""Tests this machine's devices: the CPU's probe and its cache, and GPUs of a fake driver."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba")

from foretune.collect import cpu, devices, machine_load
from foretune.collect.cpu import fast_seconds
from foretune.collect.machine_load import MachineLoad
from foretune.device import SPECS, available_cores, find_device
from foretune.errors import MissingExtra, UnknownName

MEASURED = {"memory_gbps": 50.0, "fp32_gflops": 400.0, "fp64_gflops": 200.0}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETUNE_CACHE", str(tmp_path))
    monkeypatch.setattr(devices, "_memo", {})
    return tmp_path


class Probing(list):
    """One element per time the measurement ran; each gives higher bandwidth, under ``load``."""

    load = MachineLoad(0.0, 0.0)

    def measure(self):
        self.append(1)
        return {**MEASURED, "memory_gbps": MEASURED["memory_gbps"] + len(self)}


@pytest.fixture
def measured(monkeypatch):
    """Replace the measurement and the observed load."""
    calls = Probing()
    monkeypatch.setattr(cpu, "measure_cpu", calls.measure)
    monkeypatch.setattr(devices, "QUIET_CHECK_S", 0.0)
    monkeypatch.setattr(machine_load, "MAX_OTHER_LOAD", 0.1)  # other tests never see any load
    monkeypatch.setattr(machine_load, "MAX_STEAL", 0.02)
    monkeypatch.setattr(
        devices, "LoadMonitor", lambda _: nullcontext(SimpleNamespace(load=calls.load))
    )
    return calls


@pytest.fixture
def no_gpus(monkeypatch):
    monkeypatch.setattr(devices, "local_gpus", list)


def test_measure_cpu_returns_plausible_rates(monkeypatch):
    monkeypatch.setattr(cpu, "fast_seconds", lambda call, s: fast_seconds(call, s / 4))
    device = devices.local_cpu()
    assert device.kind == "cpu"
    assert device.name
    assert device.specs.keys() <= SPECS.keys()
    assert device.specs["cores"] == available_cores()
    assert 0.5 < device.specs["memory_gbps"] < 5000
    assert device.specs["fp32_gflops"] > 1.3 * device.specs["fp64_gflops"] > 0.5
    # No core does more than two 512-bit FMAs a cycle, at less than 7 GHz.
    assert device.specs["fp32_gflops"] < 64 * 7 * available_cores()
    assert "measured" in device.source


@pytest.mark.parametrize("store", ["store", "store_past_cache"])
def test_triad_computes_sum_of_products(store):
    a, b, c = (cpu.aligned(64, np.float64) for _ in range(3))
    a[:], b[:], c[:] = 0, range(64), 2
    assert a.ctypes.data % 64 == 0
    cpu.codegen.compile_function(cpu._triad_source(store), "triad")(a, b, c, 3.0, 8, 48)
    assert list(a) == [i + 6 if 8 <= i < 48 else 0 for i in range(64)]


def test_triad_uneven_length_is_cut():
    assert cpu.triad_gbps(10_001, seconds=0.0) > 0


def test_probe_cpu_is_cached(cache, measured):
    first = devices.probe_cpu()
    devices._memo.clear()
    assert devices.probe_cpu() == first
    assert len(measured) == 1
    (path,) = cache.glob("*")
    content = json.loads(path.read_text())
    assert content["specs"] == first.specs
    assert content["disturbance"] == first.disturbance == ""
    assert content["machine"]["cpu"] == cpu.cpu_name()
    assert content["machine"]["cores"] == available_cores()


def test_probe_cpu_refresh_measures_again(measured):
    first = devices.probe_cpu()
    again = devices.probe_cpu(refresh=True)
    assert again != first
    devices._memo.clear()
    assert devices.probe_cpu() == again


@pytest.mark.parametrize("change", ["cores", "version", "name"])
def test_probe_cpu_other_machine_is_measured(measured, monkeypatch, change):
    devices.probe_cpu()
    if change == "cores":
        monkeypatch.setattr(devices, "available_cores", lambda: 999)
    elif change == "version":
        monkeypatch.setattr(devices, "PROBE_VERSION", -1)
    else:
        monkeypatch.setattr(cpu, "cpu_name", lambda: "another")
    devices.probe_cpu()
    assert len(measured) == 2


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        "null",
        '{"specs": 3}',
        '{"specs": {"memory_gbps": 1}, "disturbance": ""}',
        json.dumps({"specs": MEASURED}),
        json.dumps({"specs": {**MEASURED, "memory_gbps": 0}, "disturbance": ""}),
        json.dumps({"specs": {**MEASURED, "memory_gbps": float("nan")}, "disturbance": ""}),
        json.dumps({"specs": {**MEASURED, "memory_gbps": "fast"}, "disturbance": ""}),
        b"\xff\xfe\x00",
    ],
)
def test_probe_cpu_replaces_damaged_cache(cache, measured, damage):
    devices.probe_cpu()
    (path,) = cache.glob("*")
    path.write_bytes(damage if isinstance(damage, bytes) else damage.encode())
    devices._memo.clear()
    again = devices.probe_cpu()
    assert len(measured) == 2
    assert json.loads(path.read_text())["specs"] == again.specs


def test_probe_cpu_unwritable_cache_measures_once_per_process(cache, measured, monkeypatch):
    (cache / "file").write_text("")
    monkeypatch.setenv("FORETUNE_CACHE", str(cache / "file" / "below"))
    assert devices.probe_cpu() == devices.probe_cpu()
    assert len(measured) == 1


BUSY = MachineLoad(other_load=0.5, steal=0.0)


def probe_in_a_new_process():
    devices._memo.clear()
    return devices.probe_cpu()


def test_probe_cpu_of_busy_machine_is_repeated_when_quiet(measured):
    measured.load = BUSY
    first = devices.probe_cpu()
    assert "other processes kept the CPU busy" in first.disturbance
    assert devices.local_cpu().rates_measured_while == first.disturbance
    assert probe_in_a_new_process() == first  # still busy
    measured.load = MachineLoad(0.0, 0.0)
    assert devices.probe_cpu() == first  # a process sees one device
    better = probe_in_a_new_process()
    assert (better.specs["memory_gbps"], better.disturbance) == (52.0, "")
    assert probe_in_a_new_process() == better
    assert len(measured) == 2


def test_probe_cpu_keeps_higher_rates(measured, monkeypatch):
    first = devices.probe_cpu()
    measured.load = BUSY
    rates = {"memory_gbps": 1.0, "fp32_gflops": 500.0, "fp64_gflops": 1}
    monkeypatch.setattr(cpu, "measure_cpu", lambda: rates)
    assert devices.probe_cpu(refresh=True).specs == {**first.specs, "fp32_gflops": 500.0}
    assert devices.probe_cpu().disturbance == ""  # of the first


def test_probe_cpu_keeps_rates_cached_by_earlier_versions(measured):
    devices.probe_cpu().specs["l1_gbps"] = 200.0
    assert devices.local_cpu().specs["l1_gbps"] == 200.0
    assert devices.probe_cpu(refresh=True).specs["l1_gbps"] == 200.0


def test_probe_cpu_steal_of_quiet_machine_is_no_disturbance(measured):
    measured.load = MachineLoad(0.0, steal=0.3)
    assert "the host took away 30%" in devices.probe_cpu().disturbance
    assert devices.probe_cpu(refresh=True).disturbance == ""


def test_local_cpu_without_measure_does_not_measure(measured):
    assert devices.probe_cpu(measure=False) is None
    measured.load = BUSY
    devices.probe_cpu()
    devices._memo.clear()
    measured.load = MachineLoad(0.0, 0.0)
    assert devices.probe_cpu(measure=False).specs["memory_gbps"] == 51.0
    assert len(measured) == 1


def test_local_cpu_without_numba_has_no_rates(monkeypatch):
    def measure():
        raise MissingExtra("numba", "cpu", "a CPU kernel")

    monkeypatch.setattr(cpu, "measure_cpu", measure)
    device = devices.local_cpu()
    assert "memory_gbps" not in device.specs
    assert "cores" in device.specs
    assert "pip install '.[cpu]'" in device.source


def test_cache_sizes_reads_first_core(tmp_path):
    for i, (level, kind, size) in enumerate(
        [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K"), (3, "Unified", "")]
    ):
        folder = tmp_path / f"cpu0/cache/index{i}"
        folder.mkdir(parents=True)
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{value}\n")
    assert cpu.cache_sizes(tmp_path) == {"l1_kib": 48.0, "l2_kib": 2048.0}


def test_last_level_caches_counts_shared_lists(tmp_path):
    for number, shared in enumerate(["0-1", "0-1", "2-3", "2-3"]):
        folder = tmp_path / f"cpu{number}/cache/index3"
        folder.mkdir(parents=True)
        (folder / "shared_cpu_list").write_text(shared + "\n")
    assert cpu._last_level_caches(tmp_path) == 2
    assert cpu._last_level_caches(tmp_path / "nothing") == 1


@pytest.mark.parametrize(
    ("features", "suffix", "bits"),
    [
        ({"sse2", "avx", "avx2", "avx512f"}, "+avx512", 512),
        ({"sse2", "avx", "avx2"}, "+avx2", 256),
        ({"sse2"}, "+sse", 128),
        ({"neon"}, "+neon", 128),
        (set(), "", 0),
    ],
)
def test_architecture_names_widest_extension(features, suffix, bits):
    assert cpu.architecture(features).partition("+")[2] == suffix.removeprefix("+")
    assert cpu.vector_bits(features) == bits


# GPUs ---------------------------------------------------------------------------------------------


class FakeNvml:
    """Two GPUs: an H200 that tells everything, and a newcomer that tells its name only."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    def nvmlInit(self):  # noqa: N802
        pass

    nvmlShutdown = nvmlInit  # noqa: N815

    def __getattr__(self, question):
        answers = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda i: i,
            "nvmlDeviceGetName": ["NVIDIA H200", "NVIDIA X1"].__getitem__,
            "nvmlDeviceGetUUID": ["GPU-aa01", "GPU-bb02"].__getitem__,
            "nvmlDeviceGetCudaComputeCapability": {0: (9, 0)}.__getitem__,
            "nvmlDeviceGetNumGpuCores": {0: 132 * 128}.__getitem__,
            "nvmlDeviceGetMemoryInfo": {0: SimpleNamespace(total=140 * 2**30)}.__getitem__,
            "nvmlDeviceGetPowerManagementLimit": {0: 500_000}.__getitem__,
            "nvmlDeviceGetMaxClockInfo": lambda i, _: {0: 1980}[i],
        }
        if question not in answers:
            raise AttributeError(question)

        def answer(*args):
            try:
                return answers[question](*args)
            except LookupError:
                raise self.NVMLError("not supported") from None

        return answer


def test_nvidia_gpus_combine_table_and_driver(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    known, unknown = devices.nvidia_gpus(FakeNvml())
    assert known.name == "NVIDIA H200"
    assert known.architecture == "sm_90"
    assert known.specs["power_limit_w"] == 500  # this board's, not the datasheet's
    assert known.specs["memory_gib"] == 140
    assert known.specs["cores"] == 132
    assert known.specs["memory_gbps"] == find_device("H200").specs["memory_gbps"]
    assert known.source.startswith("NVIDIA driver; ")
    assert (unknown.name, unknown.kind, dict(unknown.specs)) == ("NVIDIA X1", "gpu", {})


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("1", ["NVIDIA X1"]),
        ("1,0", ["NVIDIA X1", "NVIDIA H200"]),
        ("GPU-bb", ["NVIDIA X1"]),
        ("0,7,1", ["NVIDIA H200"]),
        ("", []),
        ("-1", []),
    ],
)
def test_nvidia_gpus_follow_cuda_visible_devices(monkeypatch, variable, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert [gpu.name for gpu in devices.nvidia_gpus(FakeNvml())] == names


@pytest.mark.parametrize("variable", [None, "0", "MIG-cc03"])
def test_nvidia_gpus_mig_slice_has_own_name_and_size(monkeypatch, variable):
    class Split(FakeNvml):
        """GPU 0 is split: its first slice is 10."""

        def __getattr__(self, question):
            answers = {
                "nvmlDeviceGetMigMode": {0: (1, 1)}.__getitem__,
                "nvmlDeviceGetMigDeviceHandleByIndex": lambda i, _: {0: 10}[i],
                "nvmlDeviceGetHandleByUUID": {"MIG-cc03": 10}.__getitem__,
                "nvmlDeviceIsMigDeviceHandle": lambda handle: handle == 10,
                "nvmlDeviceGetAttributes": {10: SimpleNamespace(multiprocessorCount=16)}.get,
            }
            if question == "nvmlDeviceGetName":
                names = ["NVIDIA H200", "NVIDIA X1"] + 8 * [""] + ["NVIDIA H200 MIG 1g.18gb"]
                return names.__getitem__
            if question not in answers:
                return super().__getattr__(question)

            def answer(*args):
                try:
                    return answers[question](*args)
                except LookupError:
                    raise self.NVMLError("not supported") from None

            return answer

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    first, *_ = devices.nvidia_gpus(Split())
    assert (first.name, first.specs["cores"]) == ("NVIDIA H200 MIG 1g.18gb", 16)


def test_nvidia_gpus_without_driver_is_empty():
    class NoDriver(FakeNvml):
        def nvmlInit(self):  # noqa: N802
            raise self.NVMLError("Driver Not Loaded")

    assert devices.nvidia_gpus(NoDriver()) == []


def test_nvidia_gpus_without_pynvml_is_empty(monkeypatch):
    def missing(*args):
        raise MissingExtra("pynvml", "gpu", "finding GPUs")

    monkeypatch.setattr(devices, "require", missing)
    assert devices.nvidia_gpus() == []


def test_local_device_finds_devices_by_name(measured, monkeypatch):
    gpu = find_device("H200")
    monkeypatch.setattr(devices, "local_gpus", lambda: [gpu])
    assert [d.name for d in devices.local_devices()] == [cpu.cpu_name(), "NVIDIA H200"]
    for name in ("cuda", "gpu", "cuda:0", "CUDA:0", "h200", "NVIDIA H200"):
        assert devices.local_device(name) is gpu
    for name in (None, "cpu", "CPU", cpu.cpu_name()):
        assert devices.local_device(name).kind == "cpu"


@pytest.mark.usefixtures("no_gpus")
@pytest.mark.parametrize("name", ["cuda:0", "cuda", "NVIDIA H200", "tpu"])
def test_local_device_unknown_name_is_refused(name):
    with pytest.raises(UnknownName, match="known: cpu"):
        devices.local_device(name)
