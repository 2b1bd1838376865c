"""A driver that replays launches: its log, its device, its failures."""

import threading

import pytest

from foretune.errors import UnknownName, UsageError

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl
from replay_driver import ReplayDriver
from triton.runtime.errors import OutOfResources

N = 1000


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@pytest.fixture(autouse=True)
def compiler_settings(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))


@pytest.fixture
def tensors():
    return torch.zeros(N, dtype=torch.float16), torch.ones(N)


def blocks(launch):
    return launch.config["BLOCK"] / 100


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("device", ["NVIDIA H200", "AMD Instinct MI300X"])
def test_launch_is_logged_with_its_arguments(tensors, device, compile):
    with ReplayDriver(blocks, device=device, compile=compile).active() as driver:
        compiled = copy[lambda meta: (triton.cdiv(N, meta["BLOCK"]),)](
            *tensors, N, BLOCK=128, num_warps=2
        )
        copy[(2, 3)](*tensors, 7, BLOCK=256)
    first, second = driver.launches
    assert (first.kernel, first.grid, first.time_ms) == ("copy", (8, 1, 1), 1.28)
    assert first.config == {"BLOCK": 128, "num_warps": 2, **_defaults(device)}
    assert first.arguments["n"] == N
    assert (first.arguments["x"].shape, first.arguments["x"].dtype) == ((N,), torch.float16)
    assert first.arguments["x"].device.type == "meta"
    assert (second.grid, second.time_ms, second.arguments["n"]) == ((2, 3, 1), 2.56, 7)
    assert [config["BLOCK"] for _, config in driver.compilations] == [128, 256]
    assert bool(compiled.asm) == compile
    assert driver.device_interface.clock_ms == pytest.approx(1.28 + 2.56)


def _defaults(device):
    return {"num_ctas": 1, "num_stages": 3 if device.startswith("NVIDIA") else 2}


def test_launch_of_an_empty_grid_is_not_logged(tensors):
    with ReplayDriver(blocks).active() as driver:
        copy[(0,)](*tensors, N, BLOCK=128)
    assert driver.launches == []


def test_active_restores_driver_and_compiler(tensors):
    active, compiler = triton.runtime.driver._active, triton.compiler.compile
    with ReplayDriver(blocks).active() as outer:
        with ReplayDriver(lambda launch: 9.0).active() as inner:
            copy[(1,)](*tensors, N, BLOCK=128)
        assert triton.runtime.driver.active is outer
        copy[(1,)](*tensors, N, BLOCK=128)
    assert triton.runtime.driver._active is active
    assert triton.compiler.compile is compiler
    assert [launch.time_ms for launch in inner.launches + outer.launches] == [9.0, 1.28]


def test_active_restores_the_driver_after_an_error():
    active = triton.runtime.driver._active
    with pytest.raises(ZeroDivisionError), ReplayDriver(blocks).active():
        raise ZeroDivisionError
    assert triton.runtime.driver._active is active


def test_set_active_without_active_really_compiles(tensors):
    driver = ReplayDriver(blocks, compile=True)
    before = triton.runtime.driver._active
    triton.runtime.driver.set_active(driver)
    try:
        compiled = copy[(1,)](*tensors, N, BLOCK=128)
    finally:
        triton.runtime.driver._active = before
    assert ".target sm_90a" in compiled.asm["ptx"]
    assert 0 < compiled.n_regs <= 255
    assert compiled.n_spills == 0
    assert len(driver.launches) == 1


def test_times_may_write_to_tensors(tensors):
    def run(launch):
        launch.arguments["y"].copy_(launch.arguments["x"])
        return 1.0

    with ReplayDriver(run).active():
        copy[(1,)](*tensors, N, BLOCK=128)
    assert tensors[1].eq(0).all()


def test_benchmarker_returns_quantiles_of_launches(tensors):
    series = iter([4.0, 1.0, 3.0, 2.0, 5.0] * 4)
    with ReplayDriver(lambda launch: next(series), repeats=5).active() as driver:

        def call():
            copy[(1,)](*tensors, N, BLOCK=128)

        bench = driver.get_benchmarker()
        assert bench(call, quantiles=(0.5, 0.0, 1.0)) == [3.0, 1.0, 5.0]
        assert bench(call, quantiles=[0.5]) == 3.0
        assert bench(call, return_mode="all") == [4.0, 1.0, 3.0, 2.0, 5.0]
        assert bench(call, warmup=1, rep=2) == 3.0


def test_benchmarker_of_triton_runs(tensors):
    with ReplayDriver(lambda launch: 20.0).active() as driver:
        found = triton.testing.do_bench(
            lambda: copy[(1,)](*tensors, N, BLOCK=128), warmup=1, rep=100, quantiles=[0.5]
        )
    assert found == 20.0
    assert driver.flushes >= 5
    assert len(driver.launches) >= 11


def test_launch_raises_errors_of_times(tensors):
    def times(launch):
        if launch.config["BLOCK"] > 128:
            raise OutOfResources(300, 200, "shared memory")
        return 1.0

    with ReplayDriver(times).active() as driver:
        with pytest.raises(OutOfResources):
            copy[(1,)](*tensors, N, BLOCK=256)
        copy[(1,)](*tensors, N, BLOCK=128)
    assert [type(launch.error) for launch in driver.launches] == [OutOfResources, type(None)]


def test_compile_checks_shared_memory(tensors, monkeypatch):
    with ReplayDriver(blocks, compile=True).active() as driver:
        tiny = {"max_shared_mem": -1}
        monkeypatch.setattr(driver.utils, "get_device_properties", lambda device: tiny)
        with pytest.raises(OutOfResources, match="shared memory"):
            copy[(1,)](*tensors, N, BLOCK=128)
    assert driver.launches == []


def test_asynchronous_fault_breaks_the_device(tensors):
    def times(launch):
        if launch.config["BLOCK"] == 512:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return 1.0

    with ReplayDriver(times, asynchronous_faults=True).active() as driver:
        copy[(1,)](*tensors, N, BLOCK=512)
        with pytest.raises(RuntimeError, match="illegal memory access"):
            driver.device_interface.synchronize()
        with pytest.raises(RuntimeError, match="illegal memory access"):
            copy[(1,)](*tensors, N, BLOCK=128)
        with pytest.raises(RuntimeError, match="illegal memory access"):
            driver.do_bench(lambda: None)


def test_on_compile_may_raise(tensors):
    def refuse(kernel, config):
        if config["BLOCK"] == 512:
            raise triton.runtime.errors.PTXASError("scripted")

    with ReplayDriver(blocks, on_compile=refuse).active() as driver:
        with pytest.raises(triton.runtime.errors.PTXASError):
            copy.warmup(*tensors, N, BLOCK=512, grid=(1,))
        copy.warmup(*tensors, N, BLOCK=128, grid=(1,))
    assert driver.launches == []
    assert [config["BLOCK"] for _, config in driver.compilations] == [512, 128]


def test_event_measures_launches_in_between(tensors):
    with ReplayDriver(blocks).active() as driver:
        interface = driver.get_device_interface()
        start, end = interface.Event(enable_timing=True), interface.Event(enable_timing=True)
        with pytest.raises(ValueError, match="recorded"):
            start.elapsed_time(end)
        copy[(1,)](*tensors, N, BLOCK=256)
        start.record()
        copy[(1,)](*tensors, N, BLOCK=128)
        end.record()
        assert end.query()
        assert start.elapsed_time(end) == pytest.approx(1.28)
        with pytest.raises(ValueError, match="enable_timing"):
            start.elapsed_time(interface.Event())


def test_event_of_a_busy_device_is_ready_after_a_wait():
    interface = ReplayDriver(blocks).device_interface
    start, end = interface.Event(enable_timing=True), interface.Event(enable_timing=True)
    interface.busy = True
    start.record()
    end.record()
    assert not end.query()
    with pytest.raises(RuntimeError, match="not ready"):
        start.elapsed_time(end)
    interface.synchronize()
    assert start.elapsed_time(end) == 0.0


def test_capture_forbids_waiting_and_loading(tensors):
    with ReplayDriver(blocks).active() as driver:
        copy[(1,)](*tensors, N, BLOCK=128)
        driver.device_interface.capturing = True
        assert driver.device_interface.is_current_stream_capturing()
        copy[(1,)](*tensors, N, BLOCK=128)
        with pytest.raises(RuntimeError, match="capturing"):
            copy[(1,)](*tensors, N, BLOCK=64)  # which is not loaded yet
        with pytest.raises(RuntimeError, match="capturing"):
            driver.device_interface.synchronize()
        with pytest.raises(RuntimeError, match="capturing"):
            driver.do_bench(lambda: None)
    assert len(driver.launches) == 2


def test_clock_is_per_thread(tensors):
    found = {}
    both = threading.Barrier(2, timeout=30)

    def work(driver, block):
        def call():
            both.wait()
            for _ in range(20):
                copy[(1,)](*tensors, N, BLOCK=block)
            both.wait()

        found[block] = driver.do_bench(call)

    with ReplayDriver(blocks).active() as driver:
        threads = [threading.Thread(target=work, args=(driver, b)) for b in (128, 256)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {128: pytest.approx(25.6), 256: pytest.approx(51.2)}
    assert len(driver.launches) == 40


def test_device_has_names_and_properties():
    driver = ReplayDriver(blocks, device="NVIDIA H200")
    interface = driver.device_interface
    properties = interface.get_device_properties()
    assert interface.get_device_name() == properties.name == "NVIDIA H200"
    assert interface.get_device_capability() == (9, 0)
    assert driver.get_current_target().arch == 90
    assert properties.multi_processor_count == 132
    assert driver.utils.get_device_properties(0)["max_shared_mem"] == 227 * 1024
    amd = ReplayDriver(blocks, device="AMD Instinct MI300X")
    assert amd.get_current_target().arch == "gfx942"
    assert amd.device_interface.get_device_properties().gcnArchName == "gfx942"
    assert properties.regs_per_multiprocessor == 65536
    assert properties.max_threads_per_multi_processor == 2048
    assert ReplayDriver(blocks, device="NVIDIA B200").get_current_target().arch == 100
    assert amd.get_current_device() != driver.get_current_device()


def test_replayed_device_has_only_members_of_torch_cuda():
    from replay_device import ReplayDevice

    of_the_replay = {
        "clock_ms",
        "advance_clock",
        "inject_fault",
        "raise_fault",
        "exchange_capture_mode",
        "check_loading",
    }
    members = {name for name in vars(ReplayDevice) if not name.startswith("__")}

    missing = {name for name in members - of_the_replay if not hasattr(torch.cuda, name)}

    assert "_sleep" in members  # the private one with which timers delay the device
    assert not missing


def test_launch_runs_hooks(tensors):
    seen = []
    enter, leave = triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook
    note_enter, note_leave = (lambda meta: seen.append("enter")), (lambda meta: seen.append("exit"))
    enter.add(note_enter)
    leave.add(note_leave)
    try:
        with ReplayDriver(blocks).active():
            copy[(1,)](*tensors, N, BLOCK=128)
    finally:
        enter.remove(note_enter)
        leave.remove(note_leave)
    assert seen == ["enter", "exit"]


def test_driver_unknown_device_is_an_error():
    with pytest.raises(UnknownName, match="H200"):
        ReplayDriver(blocks, device="NVIDIA H20000")
    with pytest.raises(UnknownName, match="sm_60"):
        ReplayDriver(blocks, device="Tesla P100-PCIE-16GB")
    with pytest.raises(UsageError, match="repeats"):
        ReplayDriver(blocks, repeats=0)
