"""Failures while `foretune.autotune` measures, and calls in a graph capture."""

import contextlib
import threading
import time
import warnings

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from replay_driver import ReplayDriver
from replayed_tuning import by_problem, call, grid, make, metered
from tuned_kernels import blocks_of, configs

import foretune
from foretune.errors import ForetuneWarning
from foretune.tune.triton import stalled


class TestFailures:
    def test_failed_configuration_is_not_chosen(self, device, tensors):
        def times(launch):
            if launch.config["BLOCK"] >= 128:
                raise triton.runtime.errors.OutOfResources(300, 100, "shared memory")
            return by_problem(launch)

        device.times = times
        kernel = make(budget="all")
        call(kernel, device, tensors, 1024)
        assert kernel.best_config.kwargs["BLOCK"] == 64

    def test_failed_prediction_is_replaced(self, device, tensors):
        believed = make(budget=0)
        call(believed, device, tensors, 1024)
        bad = believed.best_config

        def times(launch):
            if launch.config["BLOCK"] == bad.kwargs["BLOCK"]:
                raise triton.runtime.errors.OutOfResources(300, 100, "shared memory")
            return by_problem(launch)

        device.times = times
        kernel = make(budget=0)
        kernel[grid](*tensors, 1024)
        assert kernel.best_config.kwargs["BLOCK"] != bad.kwargs["BLOCK"]

    def test_all_failed_stores_nothing(self, device, tensors, tmp_path):
        def times(launch):
            raise triton.runtime.errors.OutOfResources(300, 100, "shared memory")

        device.times = times
        kernel = make(configs(64, 128), store=tmp_path / "t.db")
        for _ in range(2):
            with pytest.raises(triton.runtime.errors.OutOfResources):
                kernel[grid](*tensors, 1024)
        assert foretune.Store(tmp_path / "t.db").runs().empty
        device.times = by_problem
        assert call(kernel, device, tensors, 1024) == 2

    def test_broken_device_ends_the_search_and_is_stored(self, tensors, tmp_path):
        def times(launch):
            if launch.config["BLOCK"] == 128:
                raise RuntimeError("an illegal memory access was encountered")
            return 1.0

        with ReplayDriver(times, asynchronous_faults=True).active():
            kernel = make(configs(64, 128, 256), store=tmp_path / "t.db", budget="all")
            with pytest.raises(RuntimeError, match="illegal memory access"):
                kernel[grid](*tensors, 1024)
        with ReplayDriver(times, asynchronous_faults=True).active() as device:
            kernel = make(configs(64, 128, 256), store=tmp_path / "t.db", budget="all")
            call(kernel, device, tensors, 1024)
            assert 128 not in blocks_of(device.launches)

    def test_wrong_result_is_not_chosen(self, device, tensors):
        def times(launch):
            wrong = launch.config["BLOCK"] == 256
            launch.arguments["y"].copy_(launch.arguments["x"] * (2.0 if wrong else 1.0))
            return by_problem(launch)

        device.times = times
        kernel = make(budget="all", check=1e-3)
        kernel[grid](*tensors, 1024)
        assert kernel.best_config.kwargs["BLOCK"] in (128, 512)
        assert torch.equal(tensors[1], tensors[0].float())

    def test_unchecked_times_do_not_count_with_a_check(
        self, device, tensors, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(stalled, "POLL_S", -1.0)  # to wait for others is an error here

        def times(launch):
            launch.arguments["y"].fill_(2.0 if launch.config["BLOCK"] == 256 else 1.0)
            return by_problem(launch)

        device.times = times
        unchecked = make(configs(64, 256), budget="all", store=tmp_path / "t.db")
        call(unchecked, device, tensors, 1024)
        assert unchecked.best_config.kwargs["BLOCK"] == 256
        checked = make(configs(64, 256), budget="all", check=1e-3, store=tmp_path / "t.db")
        call(checked, device, tensors, 1024)
        assert checked.best_config.kwargs["BLOCK"] == 64

    def test_wrong_result_has_no_timing(self, device, tensors, tmp_path):
        def times(launch):
            launch.arguments["y"].fill_(2.0 if launch.config["BLOCK"] == 256 else 1.0)
            return by_problem(launch)

        device.times = times
        kernel = make(configs(64, 256), budget="all", check=1e-3)
        call(kernel, device, tensors, 1024)
        assert [t[0] for t in kernel.configs_timings.values()][1] == float("inf")

    def test_failed_configuration_computes_no_expected_output(self, device, tensors):
        def times(launch):
            if launch.config["BLOCK"] == 64:
                raise triton.runtime.errors.OutOfResources(300, 100, "shared memory")
            launch.arguments["y"].fill_(float("nan"))  # scratch that holds no numbers
            return by_problem(launch)

        device.times = times
        kernel = make(configs(64, 128, 256), budget="all", check=1e-3)
        call(kernel, device, tensors, 1024)
        assert kernel.best_config.kwargs["BLOCK"] == 256

    def test_wrong_call_raises_once(self, device, tensors):
        def times(launch):
            raise ValueError("a pointer that is none")

        device.times = times
        with pytest.raises(ValueError, match="a pointer that is none"):
            call(make(), device, tensors, 1024)
        assert len(device.launches) == 1

    def test_failing_meter_warns(self, device, tensors, monkeypatch):
        metered(monkeypatch, device, fails=True)
        kernel = make(configs(64, 256), objective="energy")
        with pytest.warns(ForetuneWarning, match="power was not metered"):
            call(kernel, device, tensors, 1024)

    def test_meter_without_values_ends_the_search(self, device, tensors, monkeypatch):
        metered(monkeypatch, device, watts=float("nan"))
        kernel = make(configs(64, 256), objective="energy")
        call(kernel, device, tensors, 1024)
        assert kernel.best_config in kernel.configs

    @pytest.mark.parametrize("budget", ["all", "auto", 3])
    def test_seconds_limit_starts_no_further_measurement(self, device, tensors, tmp_path, budget):
        def times(launch):
            time.sleep(0.3)
            return by_problem(launch)

        device.times = times
        kernel = make(budget=budget, seconds=0.25, store=tmp_path / "t.db")
        assert call(kernel, device, tensors, 1024) == 1
        again = make(budget=budget, seconds=0.25, store=tmp_path / "t.db")
        assert call(again, device, tensors, 1024) == 0
        assert again.best_config.kwargs == kernel.best_config.kwargs
        device.times = by_problem
        assert call(make(budget=budget, seconds=1e6), device, tensors, 1024) > 1

    def test_fallback_keeps_to_the_budget(self, device, tensors, monkeypatch):
        from foretune.tune.triton import choice

        def broken(self):
            raise ZeroDivisionError("ours")

        monkeypatch.setattr(choice.ChoiceRule, "stored_choice", broken)
        with pytest.warns(ForetuneWarning, match="ZeroDivisionError"):
            assert call(make(budget=0), device, tensors, 1024) == 0

    def test_few_measurements_do_not_write_the_file_of_triton(
        self, device, tensors, monkeypatch, tmp_path
    ):
        store = tmp_path / "t.db"
        kernel = make(configs(64, 128, 256), budget=1, cache_results=True, store=store)
        call(kernel, device, tensors, 1024)
        assert not list((tmp_path / "triton").rglob("*.autotune.json"))

    def test_without_a_store_a_second_tuner_reads_the_file(
        self, device, tensors, monkeypatch, tmp_path
    ):
        def another(budget):
            kernel = make(configs(64, 128, 256), budget=budget, cache_results=True, store=False)
            measured = call(kernel, device, tensors, 1024)
            return measured, kernel.best_config.kwargs, list(kernel.cache)

        first = another(budget=1)
        again = another(budget=1)
        more = another(budget=2)

        assert [first[0], again[0], more[0]] == [1, 0, 2]
        assert again[1:] == first[1:]
        assert len(again[2]) == 1

    def test_error_of_a_hook_is_raised(self, device, tensors):
        def hook(arguments, reset_only=False):
            raise KeyError("the hook's own")

        kernel = make(pre_hook=hook)
        with pytest.raises(KeyError, match="the hook's own"):
            kernel[grid](*tensors, 1024)

    def test_error_in_foretune_falls_back_to_stock(self, device, tensors, monkeypatch):
        from foretune.tune.triton import choice

        def broken(self):
            raise ZeroDivisionError("ours")

        monkeypatch.setattr(choice.ChoiceRule, "stored_choice", broken)
        kernel = make(configs(64, 256))
        with pytest.warns(ForetuneWarning, match="fell back to stock Triton: ZeroDivisionError"):
            assert call(kernel, device, tensors, 1024) == 2
        assert kernel.best_config.kwargs["BLOCK"] == 256
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert call(kernel, device, tensors, 1024) == 0

    @pytest.mark.parametrize(
        ("options", "capturing", "consequence"),
        [
            ({"mode": "serve"}, False, "runs with its first configuration"),
            ({}, True, "is captured with its first configuration"),
            ({"mode": "online"}, False, "is tuned while the call waits"),
        ],
        ids=["serve", "capture", "online"],
    )
    def test_error_in_foretune_says_what_happens_instead(
        self, device, tensors, monkeypatch, options, capturing, consequence
    ):
        from foretune.tune.triton import choice

        def broken(self):
            raise ZeroDivisionError("ours")

        monkeypatch.setattr(choice.ChoiceRule, "stored_choice", broken)
        device.device_interface.capturing = capturing
        kernel = make(configs(64, 256), **options)
        with pytest.warns(ForetuneWarning) as warned:
            kernel[grid](*tensors, 1024)

        assert str(warned[0].message).startswith(f"foretune.autotune of copy {consequence}: Zero")

    def test_slow_compilation_is_given_up(self, tensors):
        stop = threading.Event()

        def slow(kernel, config):
            if config["BLOCK"] == 256:
                stop.wait(20)

        with ReplayDriver(by_problem, on_compile=slow).active() as device:
            kernel = make(configs(64, 128, 256), budget="all", compile_limit_s=0.2)
            call(kernel, device, tensors, 1024)
            stop.set()
        assert kernel.best_config.kwargs["BLOCK"] == 128
        assert [t[0] for t in kernel.configs_timings.values()][2] == float("inf")


class TestCapture:
    def test_capture_measures_nothing(self, device, tensors):
        kernel = make(budget=4)
        device.device_interface.capturing = True
        assert call(kernel, device, tensors, 1024) == 0
        device.device_interface.capturing = False
        assert call(kernel, device, tensors, 1024) == 4

    def test_capture_unfit_configuration_is_replaced(self, device, tensors):
        def times(launch):
            if launch.config["BLOCK"] >= 64:
                raise triton.runtime.errors.OutOfResources(300, 100, "shared memory")
            return by_problem(launch)

        device.times = times
        kernel = make(configs(64, 128, 256, 16, 32), budget=4)
        device.device_interface.capturing = True
        kernel[grid](*tensors, 1024)
        assert kernel.best_config.kwargs["BLOCK"] in (16, 32)
        assert call(kernel, device, tensors, 1024) == 0  # it knows by now

    def test_capture_loads_code(self, device, tensors):
        kernel = make(budget=4)
        device.device_interface.capturing = True
        call(kernel, device, tensors, 1024)
        assert len(device.compilations) == 1
        plain = triton.jit(tuned_kernels.scale)
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            plain[(1,)](tensors[1], 64, FACTOR=2, BLOCK=64)  # the mode is as it was

    def test_graph_energy_excludes_hooks(self, device, tensors, monkeypatch):
        metered(monkeypatch, device)
        captured = []
        replays = []

        class Graph:
            def replay(self):
                replays.append(len(captured))

        @contextlib.contextmanager
        def graph(it):
            before = len(device.launches)
            yield
            captured.append(len(device.launches) - before)

        device.device_interface.CUDAGraph = Graph
        device.device_interface.graph = graph
        zeroed = []
        kernel = make(
            configs(64, 256),
            objective="energy",
            budget="all",
            pre_hook=lambda *_, **__: zeroed.append(1),
        )
        call(kernel, device, tensors, 1024)
        assert len(captured) == 2
        assert all(n > 1 for n in captured)
        assert len(replays) >= 2
        assert len(zeroed) < 10
        assert kernel.best_config.kwargs["BLOCK"] == 64

    def test_graph_mode_stores_separate_times_and_choices(
        self, device, tensors, monkeypatch, tmp_path
    ):
        def replayed(run, quantiles):
            run()
            return [10.0 / device.launches[-1].config["BLOCK"]] * 3

        monkeypatch.setattr(triton.testing, "do_bench_cudagraph", replayed)
        listed = configs(64, 256, 512)
        options = {"store": tmp_path / "t.db", "budget": "all"}
        plain = make(listed, **options)
        graphed = make(listed, mode="graph", **options)
        assert [call(k, device, tensors, 1024) for k in (plain, graphed)] == [3, 3]
        assert blocks_of([plain.best_config, graphed.best_config]) == [256, 512]
