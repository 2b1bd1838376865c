"""What `foretune.autotune` adds: few measurements, none, none in the way, and a memory."""

import contextlib
import dataclasses
import math
import threading
import time
import warnings

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from replay_driver import ReplayDriver
from tuned_kernels import blocks_of, configs

import foretune
from foretune import Configuration, SearchSpace
from foretune.errors import ForetuneWarning, PredictorError, UsageError
from foretune.measurement import Status
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.triton import stalled

BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048)


def by_problem(launch):
    """Larger problems like larger blocks and more warps; a valley in both."""
    size, config = launch.arguments["n"], launch.config
    off = math.log2(config["BLOCK"] / size) + 2, math.log2(config["num_warps"] / 4)
    return size / 1000 * (1 + 0.3 * off[0] ** 2 + 0.1 * off[1] ** 2)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@pytest.fixture
def device():
    with ReplayDriver(by_problem).active() as active:
        yield active


def all_configs():
    return [triton.Config({"BLOCK": b}, num_warps=w) for b in BLOCKS for w in (1, 2, 4, 8)]


def make(tuned_by=None, **options):
    options = {"store": False, **options}
    return foretune.autotune(tuned_by or all_configs(), ["n"], **options)(
        triton.jit(tuned_kernels.copy)
    )


def call(kernel, device, tensors, n):
    """Call once; return how many launches that took beyond the call itself."""
    before = len(device.launches)
    kernel[grid](*tensors, n)
    return len(device.launches) - before - 1


def until_settled(kernel, tensors):
    """Call until the online search is over; it plans in the background."""
    for _ in range(2000):
        kernel[grid](*tensors, 1024)
        if len(kernel.cache):
            return
        time.sleep(0.002)


def metered(monkeypatch, device, watts=None, fails=False):
    """Give the device a meter: as many watts as the block that runs has elements, or as given."""
    from foretune.collect import power
    from foretune.tune.triton import benchmark, choice

    class Meter(power.PowerMeter):
        name, device_kind = "replayed", "gpu"

        def unavailable_because(self):
            return None

        def start(self):
            if fails:
                raise RuntimeError("the GPU is lost")

        def stop(self):
            return float("nan")

        @contextlib.contextmanager
        def window(self):
            self.start()
            yield (window := power.Window())
            block = device.launches[-1].config["BLOCK"]
            window.seconds, window.joules = 1.0, block if watts is None else watts

    for module in (choice, benchmark):
        monkeypatch.setattr(module, "find_meter", lambda kind, index=0: Meter())
    monkeypatch.setattr(power, "RAMP_S", 0.0)
    monkeypatch.setattr(power, "WINDOW_S", 0.01)


class TestBudget:
    def test_none_is_measured_with_0(self, device, tensors):
        kernel = make(budget=0)
        assert call(kernel, device, tensors, 1024) == 0
        assert kernel.best_config in kernel.configs

    @pytest.mark.parametrize("budget", [1, 3, 8])
    def test_a_number_is_never_exceeded(self, device, tensors, budget):
        kernel = make(budget=budget)
        for n in (512, 1024, 4096, 8192):
            assert call(kernel, device, tensors, n) <= budget
        assert call(kernel, device, tensors, 512) == 0

    def test_auto_measures_less_the_more_it_knows(self, device, tensors):
        kernel = make()
        spent = [call(kernel, device, tensors, n) for n in (512, 2048, 8192, 1024, 4096, 6000)]
        assert sum(spent[3:]) < sum(spent[:3])
        assert all(3 <= n < len(kernel.configs) for n in spent)

    def test_auto_finds_the_best_of_unseen_problems(self, device, tensors):
        kernel = make()
        for n in (512, 2048, 8192, 1024, 4096, 16, 64, 256, 128, 32, 700, 5000):
            call(kernel, device, tensors, n)
        assert call(kernel, device, tensors, 3000) < len(kernel.configs) / 2
        assert kernel.best_config.kwargs["BLOCK"] in (512, 1024)
        assert kernel.best_config.num_warps == 4

    def test_the_measured_best_is_chosen(self, device, tensors):
        kernel = make(budget=8)
        call(kernel, device, tensors, 1024)
        timings = kernel.configs_timings
        assert kernel.best_config is min(timings, key=timings.get)
        assert len(timings) <= 8

    @pytest.mark.parametrize(
        ("option", "value"),
        [("budget", -1), ("budget", True), ("budget", "some"), ("mode", "later"),
         ("objective", "speed"), ("regret", -0.1), ("regret", "x"), ("check", 0), ("store", 3),
         ("seconds", 0), ("compile_limit_s", 0), ("shipped", 3), ("predictor", 3.0)],
    )  # fmt: skip
    def test_impossible_options_are_refused(self, option, value):
        with pytest.raises(UsageError, match=option):
            make(**{option: value})

    def test_comparing_needs_a_limit_and_measurements(self):
        with pytest.raises(UsageError, match="reference needs the relative error allowed"):
            make(reference=lambda **arguments: arguments)
        with pytest.raises(UsageError, match="give a function"):
            make(reference="fp64", check=1e-2)
        with pytest.raises(UsageError, match="cannot meter or compare"):
            make(mode="online", check=1e-2)

    def test_what_is_no_kernel_or_configuration_is_refused(self):
        with pytest.raises(UsageError, match=r"give a list of triton\.Config"):
            make([{"BLOCK": 16}])
        with pytest.raises(UsageError, match="did you mean 'BLOCK'"):
            make(SearchSpace({"BLOK": [16, 32]}))
        with pytest.raises(UsageError, match=r"put @triton\.jit below"):
            foretune.autotune(configs(64), ["n"])(tuned_kernels.copy)

    def test_hundreds_of_configurations_are_all_known_once_measured(self, device, tensors):
        device.times = lambda launch: 1.0 if launch.config["num_stages"] == 40 else 4.0
        many = [triton.Config({"BLOCK": b}, num_stages=s) for s in range(1, 41) for b in BLOCKS]
        kernel = make(many, budget="all")
        assert call(kernel, device, tensors, 1024) == len(many)
        assert kernel.best_config.num_stages == 40

    def test_failures_count_and_compile_no_more_than_they_must(self, device, tensors):
        def times(launch):
            if len(device.launches) < 2:
                raise triton.runtime.errors.OutOfResources(300, 100, "shared memory")
            return by_problem(launch)

        device.times = times
        kernel = make(budget=1)
        call(kernel, device, tensors, 1024)
        assert len(kernel.configs_timings) == 3  # two that did not run, and one that did
        assert len(device.compilations) <= 4


class TestVariants:
    def test_what_16_divides_is_another_problem(self, device):
        kernel = make(budget=4)
        data = torch.zeros(65, dtype=torch.float16), torch.zeros(65)
        call(kernel, device, data, 1024)
        shifted = data[0][1:], data[1][1:]
        assert call(kernel, device, shifted, 1024) > 0
        assert call(kernel, device, data, 1024) == 0
        assert call(kernel, device, shifted, 1024) == 0
        assert len(kernel.cache) == 1

    def test_with_budget_all_it_is_not(self, device):
        kernel = make(budget="all")
        data = torch.zeros(65, dtype=torch.float16), torch.zeros(65)
        call(kernel, device, data, 1024)
        assert call(kernel, device, (data[0][1:], data[1][1:]), 1024) == 0

    def test_what_is_cleared_is_tuned_anew_in_every_variant(self, device):
        kernel = make(configs(64, 256), budget=2)
        data = torch.zeros(65, dtype=torch.float16), torch.zeros(65)
        variants = data, (data[0][1:], data[1][1:])
        for variant in variants:
            call(kernel, device, variant, 1024)
        kernel.cache.clear()
        assert [call(kernel, device, v, 1024) for v in variants] == [2, 2]
        assert [call(kernel, device, v, 1024) for v in variants] == [0, 0]

    def test_all_variants_stay_when_frozen(self, device):
        def times(launch):
            wanted = 64 if launch.arguments["x"].data_ptr() % 16 else 256
            return 1.0 + abs(launch.config["BLOCK"] - wanted)

        device.times = times
        kernel = make(configs(64, 128, 256), budget=3)
        data = torch.zeros(65, dtype=torch.float16), torch.zeros(65)
        for variant in (data, (data[0][1:], data[1][1:])):
            call(kernel, device, variant, 1024)
        assert sorted(blocks_of(kernel.freeze().configs)) == [64, 256]

    def test_a_hook_makes_another_configuration(self, device, tensors):
        ran = []

        def prepare(arguments):
            ran.append(arguments["BLOCK"])

        plain, hooked = triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 64}, pre_hook=prepare)
        kernel = make([plain, hooked], budget="all")
        assert call(kernel, device, tensors, 1024) == 2
        assert ran == [64]


class TestSpace:
    def test_a_space_is_searched(self, device, tensors):
        space = SearchSpace(
            {"BLOCK": [16 * i for i in range(1, 65)], "num_warps": [1, 2, 4, 8, 16]},
            ["BLOCK >= 16 * num_warps"],
        )
        kernel = make(space, budget=20)
        assert len(kernel.configs) == len(space)
        assert call(kernel, device, tensors, 2048) <= 20
        chosen = kernel.best_config
        assert Configuration(BLOCK=chosen.kwargs["BLOCK"], num_warps=chosen.num_warps) in space

    def test_an_empty_space_is_refused(self):
        with pytest.raises(foretune.ForetuneError, match="no configuration"):
            make(SearchSpace({"BLOCK": [16]}, ["BLOCK > 16"]))


class TestStore:
    def test_another_kernel_of_the_same_code_knows(self, device, tensors, tmp_path):
        first = make(store=tmp_path / "tuned.db", budget=4)
        assert call(first, device, tensors, 1024) == 4
        second = make(store=tmp_path / "tuned.db", budget=4)
        assert call(second, device, tensors, 1024) == 0
        assert second.best_config == first.best_config

    def test_one_more_configuration_is_one_more_measurement(self, device, tensors, tmp_path):
        few = all_configs()[:10]
        assert call(make(few, store=tmp_path / "t.db", budget="all"), device, tensors, 1024) == 10
        more = make(all_configs()[:11], store=tmp_path / "t.db", budget="all")
        assert call(more, device, tensors, 1024) == 1
        assert len(more.configs_timings) == 11

    def test_a_larger_budget_goes_on(self, device, tensors, tmp_path):
        call(make(store=tmp_path / "t.db", budget=2), device, tensors, 1024)
        more = make(store=tmp_path / "t.db", budget=6)
        assert 0 < call(more, device, tensors, 1024) <= 6
        again = make(store=tmp_path / "t.db", budget=6)
        assert call(again, device, tensors, 1024) == 0
        assert again.best_config == more.best_config

    def test_another_device_knows_nothing(self, device, tensors, tmp_path):
        call(make(store=tmp_path / "t.db", budget=2), device, tensors, 1024)
        with ReplayDriver(by_problem, device="NVIDIA A100-SXM4-80GB").active() as other:
            assert call(make(store=tmp_path / "t.db", budget=2), other, tensors, 1024) == 2

    def test_a_broken_store_costs_one_warning(self, device, tensors, tmp_path):
        broken = tmp_path / "t.db"
        broken.write_bytes(b"no database" * 500)
        kernel = make(store=broken, budget=3)
        with pytest.warns(ForetuneWarning, match=r"t\.db") as caught:
            assert call(kernel, device, tensors, 1024) == 3
        assert len(caught) == 1
        assert call(kernel, device, tensors, 512) == 3
        assert broken.read_bytes().startswith(b"no database")

    def test_results_can_be_shipped(self, device, tensors, tmp_path):
        call(make(store=tmp_path / "t.db", budget="all"), device, tensors, 1024)
        foretune.Store(tmp_path / "t.db").export(tmp_path / "tuned.json")
        kernel = make(shipped=tmp_path / "tuned.json", budget=4)
        assert call(kernel, device, tensors, 1024) == 0
        assert kernel.best_config.kwargs["BLOCK"] == 256

    def test_another_objective_is_another_choice(self, device, tensors, tmp_path, monkeypatch):
        metered(monkeypatch, device)
        listed = configs(64, 128, 256)
        saving = make(listed, store=tmp_path / "t.db", objective="energy", budget="all")
        fast = make(listed, store=tmp_path / "t.db", budget="all")
        call(saving, device, tensors, 1024)
        call(fast, device, tensors, 1024)
        assert blocks_of([saving.best_config, fast.best_config]) == [64, 256]

    def test_times_alone_do_not_answer_for_energy(self, device, tensors, tmp_path, monkeypatch):
        call(make(configs(64, 256), store=tmp_path / "t.db", budget="all"), device, tensors, 1024)
        metered(monkeypatch, device)
        saving = make(configs(64, 256, 512), store=tmp_path / "t.db", objective="energy",
                      budget="all")  # fmt: skip
        call(saving, device, tensors, 1024)
        assert saving.best_config.kwargs["BLOCK"] == 64

    def test_a_missing_shipped_file_leaves_the_store_alone(self, device, tensors, tmp_path):
        kernel = make(configs(64, 256), store=tmp_path / "t.db", shipped=tmp_path / "none.json")
        with pytest.warns(ForetuneWarning, match="shipped results are not used"):
            call(kernel, device, tensors, 1024)
        assert len(foretune.Store(tmp_path / "t.db").runs()) == 2

    def test_a_choice_that_later_times_refute_is_made_again(self, device, tensors, tmp_path):
        first = make(configs(64, 256), store=tmp_path / "t.db", budget=1)
        call(first, device, tensors, 1024)
        store = foretune.Store(tmp_path / "t.db")
        (subject,) = store.subjects()
        (run,) = store.measurements(subject)
        other = ({64, 256} - {run.config["BLOCK"]}).pop()
        config = Configuration({**run.config, "BLOCK": other})
        for time_ms, chosen in ((0.99, run.config["BLOCK"]), (0.5, other)):
            faster = dataclasses.replace(run, config=config, time_ms=time_ms * run.time_ms)
            store.put(subject, [faster])
            again = make(configs(64, 256), store=tmp_path / "t.db", budget=1)
            assert call(again, device, tensors, 1024) == 0
            assert again.best_config.kwargs["BLOCK"] == chosen

    def test_a_verified_choice_that_fails_later_is_made_again(self, device, tensors, tmp_path):
        call(make(configs(64, 256), store=tmp_path / "t.db", budget=1), device, tensors, 1024)
        store = foretune.Store(tmp_path / "t.db")
        (subject,) = store.subjects()
        ((problem, choice),) = store.choices(subject).items()
        store.choose(subject, problem, dataclasses.replace(choice, how="verified"), choice)
        (best,) = (m for m in store.measurements(subject) if m.config == choice.config)
        failed = {"status": Status.RUNTIME_ERROR, "time_ms": math.nan, "time_ms_samples": ()}
        store.put(subject, [dataclasses.replace(best, **failed)])
        again = make(configs(64, 256), store=tmp_path / "t.db", budget=1)
        call(again, device, tensors, 1024)
        assert again.best_config.kwargs["BLOCK"] != choice.config["BLOCK"]

    def test_processes_that_tune_at_once_agree(self, device, tensors, tmp_path, monkeypatch):
        first = make(configs(64, 128, 256), store=tmp_path / "t.db", budget=1)
        second = make(configs(64, 128, 256), store=tmp_path / "t.db", budget=3)
        monkeypatch.setattr(MeasurementCache, "choice", lambda *_, **__: None)  # it began before
        call(first, device, tensors, 1024)
        call(second, device, tensors, 1024)
        assert second.best_config == first.best_config


class TestFailures:
    def test_what_does_not_run_is_never_chosen(self, device, tensors):
        def times(launch):
            if launch.config["BLOCK"] >= 128:
                raise triton.runtime.errors.OutOfResources(300, 100, "shared memory")
            return by_problem(launch)

        device.times = times
        kernel = make(budget="all")
        call(kernel, device, tensors, 1024)
        assert kernel.best_config.kwargs["BLOCK"] == 64

    def test_a_prediction_that_does_not_run_is_replaced(self, device, tensors):
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

    def test_nothing_runs_and_nothing_is_remembered(self, device, tensors, tmp_path):
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

    def test_what_breaks_the_device_ends_the_search_and_is_remembered(self, tensors, tmp_path):
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

    def test_wrong_numbers_are_never_chosen(self, device, tensors):
        def times(launch):
            wrong = launch.config["BLOCK"] == 256
            launch.arguments["y"].copy_(launch.arguments["x"] * (2.0 if wrong else 1.0))
            return by_problem(launch)

        device.times = times
        kernel = make(budget="all", check=1e-3)
        kernel[grid](*tensors, 1024)
        assert kernel.best_config.kwargs["BLOCK"] in (128, 512)
        assert torch.equal(tensors[1], tensors[0].float())

    def test_times_without_a_check_do_not_count_where_one_is_asked_for(
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

    def test_wrong_numbers_are_no_timing(self, device, tensors, tmp_path):
        def times(launch):
            launch.arguments["y"].fill_(2.0 if launch.config["BLOCK"] == 256 else 1.0)
            return by_problem(launch)

        device.times = times
        kernel = make(configs(64, 256), budget="all", check=1e-3)
        call(kernel, device, tensors, 1024)
        assert [t[0] for t in kernel.configs_timings.values()][1] == float("inf")

    def test_what_does_not_run_is_no_measure_of_right(self, device, tensors):
        def times(launch):
            if launch.config["BLOCK"] == 64:
                raise triton.runtime.errors.OutOfResources(300, 100, "shared memory")
            launch.arguments["y"].fill_(float("nan"))  # scratch that holds no numbers
            return by_problem(launch)

        device.times = times
        kernel = make(configs(64, 128, 256), budget="all", check=1e-3)
        call(kernel, device, tensors, 1024)
        assert kernel.best_config.kwargs["BLOCK"] == 256

    def test_a_wrong_call_is_told_once(self, device, tensors):
        def times(launch):
            raise ValueError("a pointer that is none")

        device.times = times
        with pytest.raises(ValueError, match="a pointer that is none"):
            call(make(), device, tensors, 1024)
        assert len(device.launches) == 1

    def test_a_meter_that_fails_costs_a_warning(self, device, tensors, monkeypatch):
        metered(monkeypatch, device, fails=True)
        kernel = make(configs(64, 256), objective="energy")
        with pytest.warns(ForetuneWarning, match="power was not metered"):
            call(kernel, device, tensors, 1024)

    def test_a_meter_that_tells_nothing_ends_all_the_same(self, device, tensors, monkeypatch):
        metered(monkeypatch, device, watts=float("nan"))
        kernel = make(configs(64, 256), objective="energy")
        call(kernel, device, tensors, 1024)
        assert kernel.best_config in kernel.configs

    @pytest.mark.parametrize("budget", ["all", "auto", 3])
    def test_after_some_seconds_no_measurement_is_started(self, device, tensors, tmp_path, budget):
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

    def test_a_fallback_keeps_to_the_budget(self, device, tensors, monkeypatch):
        from foretune.tune.triton import choice

        def broken(self):
            raise ZeroDivisionError("ours")

        monkeypatch.setattr(choice.CallTuner, "sufficient_choice", broken)
        with pytest.warns(ForetuneWarning, match="ZeroDivisionError"):
            assert call(make(budget=0), device, tensors, 1024) == 0

    def test_stocks_file_is_not_written_by_a_few_measurements(
        self, device, tensors, monkeypatch, tmp_path
    ):
        kernel = make(configs(64, 128, 256), budget=1, cache_results=True)
        call(kernel, device, tensors, 1024)
        assert not list((tmp_path / "triton").rglob("*.autotune.json"))

    def test_a_hooks_error_is_raised(self, device, tensors):
        def hook(arguments, reset_only=False):
            raise KeyError("the hook's own")

        kernel = make(pre_hook=hook)
        with pytest.raises(KeyError, match="the hook's own"):
            kernel[grid](*tensors, 1024)

    def test_a_failure_of_ours_falls_back_to_stock(self, device, tensors, monkeypatch):
        from foretune.tune.triton import choice

        def broken(self):
            raise ZeroDivisionError("ours")

        monkeypatch.setattr(choice.CallTuner, "sufficient_choice", broken)
        kernel = make(configs(64, 256))
        with pytest.warns(ForetuneWarning, match="fell back to stock Triton: ZeroDivisionError"):
            assert call(kernel, device, tensors, 1024) == 2
        assert kernel.best_config.kwargs["BLOCK"] == 256
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert call(kernel, device, tensors, 1024) == 0

    def test_what_compiles_too_long_is_given_up(self, tensors):
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
    def test_nothing_is_measured_while_a_graph_is_captured(self, device, tensors):
        kernel = make(budget=4)
        device.device_interface.capturing = True
        assert call(kernel, device, tensors, 1024) == 0
        device.device_interface.capturing = False
        assert call(kernel, device, tensors, 1024) == 4

    def test_what_does_not_fit_is_replaced_while_capturing(self, device, tensors):
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

    def test_code_is_loaded_while_a_graph_is_captured(self, device, tensors):
        kernel = make(budget=4)
        device.device_interface.capturing = True
        call(kernel, device, tensors, 1024)
        assert len(device.compilations) == 1
        plain = triton.jit(tuned_kernels.scale)
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            plain[(1,)](tensors[1], 64, FACTOR=2, BLOCK=64)  # the mode is as it was

    def test_energy_is_that_of_a_graph_without_hooks(self, device, tensors, monkeypatch):
        metered(monkeypatch, device)
        captured, replays = [], []

        class Graph:
            def replay(self):
                replays.append(len(captured))

        @contextlib.contextmanager
        def graph(it):
            before = len(device.launches)
            yield
            captured.append(len(device.launches) - before)

        device.device_interface.CUDAGraph, device.device_interface.graph = Graph, graph
        zeroed = []
        kernel = make(configs(64, 256), objective="energy", budget="all",
                      pre_hook=lambda *_, **__: zeroed.append(1))  # fmt: skip
        call(kernel, device, tensors, 1024)
        assert len(captured) == 2
        assert all(n > 1 for n in captured)
        assert len(replays) >= 2
        assert len(zeroed) < 10
        assert kernel.best_config.kwargs["BLOCK"] == 64

    def test_graphs_have_times_and_choices_of_their_own(
        self, device, tensors, monkeypatch, tmp_path
    ):
        def replayed(run, quantiles):
            run()
            return [10.0 / device.launches[-1].config["BLOCK"]] * 3

        monkeypatch.setattr(triton.testing, "do_bench_cudagraph", replayed)
        listed, options = configs(64, 256, 512), {"store": tmp_path / "t.db", "budget": "all"}
        plain, graphed = make(listed, **options), make(listed, mode="graph", **options)
        assert [call(k, device, tensors, 1024) for k in (plain, graphed)] == [3, 3]
        assert blocks_of([plain.best_config, graphed.best_config]) == [256, 512]


class TestOnline:
    def test_a_launch_is_timed_without_its_way_to_the_device(self, device, tensors):
        device.device_interface.launch_ms = 50.0
        kernel = make(configs(64, 128, 256), mode="online", budget=3)
        until_settled(kernel, tensors)
        assert max(t for times in kernel.configs_timings.values() for t in times) < 50.0

    def test_every_call_launches_once_until_the_best_is_found(self, device, tensors):
        kernel = make(configs(64, 128, 256, 512), mode="online", budget=4)
        for _ in range(2000):
            assert call(kernel, device, tensors, 1024) == 0
            if len(kernel.cache):
                break
            time.sleep(0.002)  # the plan is made in the background
        assert kernel.best_config.kwargs["BLOCK"] == 256
        assert set(blocks_of(device.launches)) == {64, 128, 256, 512}
        assert len(kernel.configs_timings) == 4

    def test_a_trial_that_cannot_run_is_replaced_in_the_same_call(self, device, tensors):
        def times(launch):
            if launch.config["BLOCK"] == 256:
                raise triton.runtime.errors.OutOfResources(300, 100, "shared memory")
            return by_problem(launch)

        device.times = times
        kernel = make(configs(64, 128, 256), mode="online", budget=3)
        until_settled(kernel, tensors)
        assert kernel.best_config.kwargs["BLOCK"] == 128

    def test_what_does_not_fit_is_never_the_callers_problem(self, device, tensors):
        def times(launch):
            if launch.config["BLOCK"] in (16, 128, 256):
                raise triton.runtime.errors.OutOfResources(300, 100, "shared memory")
            return by_problem(launch)

        device.times = times
        kernel = make(configs(256, 128, 16, 32, 64), mode="online", budget=5)
        until_settled(kernel, tensors)
        assert kernel.best_config.kwargs["BLOCK"] == 64

    def test_a_plan_that_fails_ends_the_search_with_a_warning(self, device, tensors, monkeypatch):
        from foretune.tune.triton import choice

        def broken(self, n=1):
            raise ZeroDivisionError("ours")

        kernel = make(configs(64, 128, 256), mode="online", budget=5)
        monkeypatch.setattr(choice.CallTuner, "ask", broken)
        with pytest.warns(ForetuneWarning, match="ZeroDivisionError"):
            until_settled(kernel, tensors)
        assert kernel.best_config in kernel.configs

    def test_no_tensor_is_kept(self, device):
        import gc
        import weakref

        kernel = make(mode="online", budget=4)
        seen = []
        for n in (512, 1024, 2048):
            data = torch.zeros(n, dtype=torch.float16), torch.zeros(n)
            seen += map(weakref.ref, data)
            kernel[grid](*data, n)
        del data
        device.launches.clear()
        gc.collect()
        assert not any(ref() is not None for ref in seen)

    def test_energy_cannot_be_had_online(self):
        with pytest.raises(UsageError, match="mode='online' times calls"):
            make(mode="online", objective="energy")


class TestWithoutLaunching:
    def test_a_ranking_measures_nothing(self, device, tensors):
        kernel = make()
        offers = kernel.rank(*tensors, 1024, grid=grid)
        assert len(device.launches) == 0
        assert [o.config for o in offers].count(offers[0].config) == 1
        assert len(offers) == len(kernel.configs)
        assert all(o.measured != o.measured for o in offers)

    def test_what_was_tuned_comes_first(self, device, tensors):
        kernel = make(budget=6)
        call(kernel, device, tensors, 1024)
        assert kernel.choose(*tensors, 1024, grid=grid) is kernel.best_config
        offers = kernel.rank(*tensors, 1024, grid=grid)
        measured = [o.measured for o in offers if o.measured == o.measured]
        assert measured == sorted(measured)

    def test_an_offer_can_be_read(self, device, tensors):
        offer = make(configs(64, 128)).rank(*tensors, 1024, grid=grid)[0]
        assert "BLOCK: " in repr(offer)
        assert "measured" not in repr(offer)

    def test_without_a_device_it_says_so(self, tensors, monkeypatch):
        monkeypatch.setattr(triton.runtime.driver, "_active", None)
        monkeypatch.setattr(triton.runtime.driver, "_default", None)
        if torch.cuda.is_available():
            pytest.skip("there is a device")
        with pytest.raises(UsageError, match="Triton finds no GPU here: set TRITON_INTERPRET=1"):
            make().choose(*tensors, 1024, grid=grid)

    def test_what_was_not_measured_is_printed_too(self, device, tensors, monkeypatch, capsys):
        monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "1")
        kernel = make(budget=0)
        kernel[grid](*tensors, 1024)
        assert "Foretune chose for function copy" in capsys.readouterr().out
        assert kernel.configs_timings == {}


class TestSwitches:
    def test_it_can_be_turned_off(self, device, tensors, monkeypatch):
        monkeypatch.setenv("FORETUNE_DISABLE", "1")
        kernel = make(configs(64, 128, 256))
        assert call(kernel, device, tensors, 1024) == 3
        assert type(kernel).run is triton.runtime.autotuner.Autotuner.run
        assert kernel.freeze() is kernel

    def test_energy_without_a_meter_minimises_time_and_says_so(self, device, tensors):
        kernel = make(configs(64, 256), objective="energy", budget="all")
        with pytest.warns(ForetuneWarning, match="needs a power meter"):
            call(kernel, device, tensors, 1024)
        assert kernel.best_config.kwargs["BLOCK"] == 256

    def test_energy_is_minimised_where_it_is_metered(self, device, tensors, monkeypatch):
        metered(monkeypatch, device)
        kernel = make(configs(64, 128, 256), objective="energy", budget="all")
        kernel[grid](*tensors, 1024)
        assert kernel.best_config.kwargs["BLOCK"] == 64

    def test_a_predictor_that_cannot_be_used_is_an_error(self, device, tensors, tmp_path):
        kernel = make(predictor=tmp_path / "nowhere", budget=2)
        with pytest.raises(PredictorError, match="holds no predictor"):
            call(kernel, device, tensors, 1024)
