"""Options of `foretune.autotune`: budgets, spaces, online tuning, ranking, switches."""

import os
import signal
import threading
import time
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from replayed_tuning import BLOCKS, by_problem, call, grid, make, metered
from tuned_kernels import blocks_of, configs

import foretune
from foretune import Configuration, SearchSpace
from foretune.errors import ForetuneWarning, PredictorError, UsageError


def until_settled(kernel, tensors):
    """Call until the online search is over; it plans in the background."""
    for _ in range(2000):
        kernel[grid](*tensors, 1024)
        if len(kernel.cache):
            return
        time.sleep(0.002)


class TestBudget:
    def test_budget_0_measures_nothing(self, device, tensors):
        kernel = make(budget=0)
        assert call(kernel, device, tensors, 1024) == 0
        assert kernel.best_config in kernel.configs

    @pytest.mark.parametrize("budget", [1, 3, 8])
    def test_budget_number_is_not_exceeded(self, device, tensors, budget):
        kernel = make(budget=budget)
        for n in (512, 1024, 4096, 8192):
            assert call(kernel, device, tensors, n) <= budget
        assert call(kernel, device, tensors, 512) == 0

    def test_budget_auto_measures_less_of_later_problems(self, device, tensors):
        kernel = make()
        spent = [call(kernel, device, tensors, n) for n in (512, 2048, 8192, 1024, 4096, 6000)]
        assert sum(spent[3:]) < sum(spent[:3])
        assert all(3 <= n < len(kernel.configs) for n in spent)

    def test_budget_auto_finds_the_best_of_an_unseen_problem(self, device, tensors):
        kernel = make()
        for n in (512, 2048, 8192, 1024, 4096, 16, 64, 256, 128, 32, 700, 5000):
            call(kernel, device, tensors, n)
        assert call(kernel, device, tensors, 3000) < len(kernel.configs) / 2
        assert kernel.best_config.kwargs["BLOCK"] in (512, 1024)
        assert kernel.best_config.num_warps == 4

    def test_budget_number_chooses_the_best_measured(self, device, tensors):
        kernel = make(budget=8)
        call(kernel, device, tensors, 1024)
        timings = kernel.configs_timings
        assert kernel.best_config is min(timings, key=timings.get)
        assert len(timings) <= 8

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("budget", -1),
            ("budget", True),
            ("budget", "some"),
            ("mode", "later"),
            ("objective", "speed"),
            ("regret", -0.1),
            ("regret", "x"),
            ("check", 0),
            ("store", 3),
            ("seconds", 0),
            ("compile_limit_s", 0),
            ("shipped", 3),
            ("predictor", 3.0),
        ],
    )
    def test_options_invalid_value_is_an_error(self, option, value):
        with pytest.raises(UsageError, match=option):
            make(**{option: value})

    def test_options_comparison_without_limit_is_an_error(self):
        with pytest.raises(UsageError, match="reference needs the relative error allowed"):
            make(reference=lambda **arguments: arguments)
        with pytest.raises(UsageError, match="give a function"):
            make(reference="fp64", check=1e-2)
        with pytest.raises(UsageError, match="cannot meter or compare"):
            make(mode="online", check=1e-2)

    def test_autotune_without_kernel_or_configurations_is_an_error(self):
        with pytest.raises(UsageError, match=r"give a list of triton\.Config"):
            make([{"BLOCK": 16}])
        with pytest.raises(UsageError, match="did you mean 'BLOCK'"):
            make(SearchSpace({"BLOK": [16, 32]}))
        with pytest.raises(UsageError, match=r"put @triton\.jit below"):
            foretune.autotune(configs(64), ["n"])(tuned_kernels.copy)

    def test_budget_all_measures_hundreds_of_configurations(self, device, tensors):
        device.times = lambda launch: 1.0 if launch.config["num_stages"] == 40 else 4.0
        many = [triton.Config({"BLOCK": b}, num_stages=s) for s in range(1, 41) for b in BLOCKS]
        kernel = make(many, budget="all")
        assert call(kernel, device, tensors, 1024) == len(many)
        assert kernel.best_config.num_stages == 40

    def test_budget_is_exceeded_until_the_first_success(self, device, tensors):
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
    def test_variant_divisible_by_16_is_another_problem(self, device):
        kernel = make(budget=4)
        data = torch.zeros(65, dtype=torch.float16), torch.zeros(65)
        call(kernel, device, data, 1024)
        shifted = data[0][1:], data[1][1:]
        assert call(kernel, device, shifted, 1024) > 0
        assert call(kernel, device, data, 1024) == 0
        assert call(kernel, device, shifted, 1024) == 0
        assert len(kernel.cache) == 1

    def test_variant_with_budget_all_is_the_same_problem(self, device):
        kernel = make(budget="all")
        data = torch.zeros(65, dtype=torch.float16), torch.zeros(65)
        call(kernel, device, data, 1024)
        assert call(kernel, device, (data[0][1:], data[1][1:]), 1024) == 0

    def test_variant_of_a_cleared_entry_is_tuned_again(self, device):
        kernel = make(configs(64, 256), budget=2)
        data = torch.zeros(65, dtype=torch.float16), torch.zeros(65)
        variants = data, (data[0][1:], data[1][1:])
        for variant in variants:
            call(kernel, device, variant, 1024)
        kernel.cache.clear()
        assert [call(kernel, device, v, 1024) for v in variants] == [2, 2]
        assert [call(kernel, device, v, 1024) for v in variants] == [0, 0]

    def test_variants_are_kept_by_freeze(self, device):
        def times(launch):
            wanted = 64 if launch.arguments["x"].data_ptr() % 16 else 256
            return 1.0 + abs(launch.config["BLOCK"] - wanted)

        device.times = times
        kernel = make(configs(64, 128, 256), budget=3)
        data = torch.zeros(65, dtype=torch.float16), torch.zeros(65)
        for variant in (data, (data[0][1:], data[1][1:])):
            call(kernel, device, variant, 1024)
        assert sorted(blocks_of(kernel.freeze().configs)) == [64, 256]

    def test_variant_with_a_hook_is_another_configuration(self, device, tensors):
        ran = []

        def prepare(arguments):
            ran.append(arguments["BLOCK"])

        plain = triton.Config({"BLOCK": 64})
        hooked = triton.Config({"BLOCK": 64}, pre_hook=prepare)
        kernel = make([plain, hooked], budget="all")
        assert call(kernel, device, tensors, 1024) == 2
        assert ran == [64]


class TestSpace:
    def test_space_is_searched(self, device, tensors):
        space = SearchSpace(
            {"BLOCK": [16 * i for i in range(1, 65)], "num_warps": [1, 2, 4, 8, 16]},
            ["BLOCK >= 16 * num_warps"],
        )
        kernel = make(space, budget=20)
        assert len(kernel.configs) == len(space)
        assert call(kernel, device, tensors, 2048) <= 20
        chosen = kernel.best_config
        assert Configuration(BLOCK=chosen.kwargs["BLOCK"], num_warps=chosen.num_warps) in space

    def test_space_without_configurations_is_an_error(self):
        with pytest.raises(foretune.ForetuneError, match="no configuration"):
            make(SearchSpace({"BLOCK": [16]}, ["BLOCK > 16"]))


class TestOnline:
    def test_online_times_exclude_the_launch_latency(self, device, tensors):
        device.device_interface.launch_ms = 50.0
        kernel = make(configs(64, 128, 256), mode="online", budget=3)
        until_settled(kernel, tensors)
        assert max(t for times in kernel.configs_timings.values() for t in times) < 50.0

    def test_online_call_launches_once(self, device, tensors):
        kernel = make(configs(64, 128, 256, 512), mode="online", budget=4)
        for _ in range(2000):
            assert call(kernel, device, tensors, 1024) == 0
            if len(kernel.cache):
                break
            time.sleep(0.002)  # the plan is made in the background
        assert kernel.best_config.kwargs["BLOCK"] == 256
        assert set(blocks_of(device.launches)) == {64, 128, 256, 512}
        assert len(kernel.configs_timings) == 4

    def test_online_failed_trial_is_replaced_in_the_same_call(self, device, tensors):
        def times(launch):
            if launch.config["BLOCK"] == 256:
                raise triton.runtime.errors.OutOfResources(300, 100, "shared memory")
            return by_problem(launch)

        device.times = times
        kernel = make(configs(64, 128, 256), mode="online", budget=3)
        until_settled(kernel, tensors)
        assert kernel.best_config.kwargs["BLOCK"] == 128

    def test_online_unfit_trial_raises_no_error(self, device, tensors):
        def times(launch):
            if launch.config["BLOCK"] in (16, 128, 256):
                raise triton.runtime.errors.OutOfResources(300, 100, "shared memory")
            return by_problem(launch)

        device.times = times
        kernel = make(configs(256, 128, 16, 32, 64), mode="online", budget=5)
        until_settled(kernel, tensors)
        assert kernel.best_config.kwargs["BLOCK"] == 64

    def test_online_failed_step_ends_the_search_with_a_warning(self, device, tensors, monkeypatch):
        from foretune.tune.triton import call_search

        def broken(self, n=1):
            raise ZeroDivisionError("ours")

        kernel = make(configs(64, 128, 256), mode="online", budget=5)
        monkeypatch.setattr(call_search.CallSearch, "ask", broken)
        with pytest.warns(ForetuneWarning, match="ZeroDivisionError"):
            until_settled(kernel, tensors)
        assert kernel.best_config in kernel.configs

    def test_online_timings_are_quantiles_as_of_a_benchmark(self, device, tensors):
        """Any three launches of a block in a row take 0, 1 and 5 ms more than its base."""
        base_ms = {64: 30.0, 128: 20.0, 256: 10.0}
        launches_of_block = Counter()

        def times(launch):
            block = launch.config["BLOCK"]
            launches_of_block[block] += 1
            return base_ms[block] + (0.0, 1.0, 5.0)[launches_of_block[block] % 3]

        device.times = times
        kernel = make(configs(*base_ms), mode="online", budget=3)
        until_settled(kernel, tensors)

        # The median is 1, 20 % is at 0.4 of the way from 0 to 1, 80 % at 0.6 from 1 to 5.
        for config, timing in kernel.configs_timings.items():
            extra_ms = [time_ms - base_ms[config.kwargs["BLOCK"]] for time_ms in timing]
            assert extra_ms == pytest.approx([1.0, 0.4, 1.0 + 0.6 * 4.0])

    @pytest.mark.parametrize("method", ["start", "stop"])
    def test_online_failed_timer_ends_the_search_but_not_the_call(
        self, device, tensors, monkeypatch, method
    ):
        from foretune.tune.triton.runtime import EventTimer

        def broken(self):
            raise ZeroDivisionError("no event")

        monkeypatch.setattr(EventTimer, method, broken)
        kernel = make(configs(64, 128, 256), mode="online", budget=3)
        with pytest.warns(ForetuneWarning, match="ended its search early: ZeroDivisionError"):
            until_settled(kernel, tensors)

        assert kernel.best_config in kernel.configs
        assert kernel.configs_timings == {}

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks on this system")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of threads, Python 3.12 on
    def test_online_call_in_forked_process_does_not_wait_for_lost_thread(self, device, tensors):
        """A step in the background holds the lock when the process forks."""
        kernel = make(configs(64, 128, 256), mode="online", budget=3)
        kernel[grid](*tensors, 1024)
        is_held, may_end = threading.Event(), threading.Event()

        def hold():
            with kernel.tuner_factory.lock:
                is_held.set()
                may_end.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        is_held.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends a process that waits for the lock
            kernel[grid](*tensors, 2048)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        may_end.set()
        holder.join()

        assert status == 0

    def test_online_search_keeps_no_tensor(self, device):
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

    def test_online_energy_is_an_error(self):
        with pytest.raises(UsageError, match="mode='online' times calls"):
            make(mode="online", objective="energy")


class TestWithoutLaunching:
    def test_rank_measures_nothing(self, device, tensors):
        kernel = make()
        offers = kernel.rank(*tensors, 1024, grid=grid)
        assert len(device.launches) == 0
        assert [o.config for o in offers].count(offers[0].config) == 1
        assert len(offers) == len(kernel.configs)
        assert all(o.measured != o.measured for o in offers)

    def test_rank_measured_configurations_come_first(self, device, tensors):
        kernel = make(budget=6)
        call(kernel, device, tensors, 1024)
        assert kernel.choose(*tensors, 1024, grid=grid) is kernel.best_config
        offers = kernel.rank(*tensors, 1024, grid=grid)
        measured = [o.measured for o in offers if o.measured == o.measured]
        assert measured == sorted(measured)

    def test_rank_entries_have_a_readable_repr(self, device, tensors):
        offer = make(configs(64, 128)).rank(*tensors, 1024, grid=grid)[0]
        assert "BLOCK: " in repr(offer)
        assert "measured" not in repr(offer)

    @pytest.mark.parametrize("question", ["run", "choose", "rank"])
    def test_pruning_that_keeps_nothing_is_an_error(self, device, tensors, question):
        rule = {"perf_model": lambda BLOCK, **_: BLOCK, "top_k": 0}
        kernel = make(prune_configs_by=rule)

        with pytest.raises(ValueError, match="pruning left copy without a configuration"):
            getattr(kernel, question)(*tensors, 1024, grid=grid)

        assert device.launches == []

    def test_choose_without_device_is_an_error(self, tensors, monkeypatch):
        monkeypatch.setattr(triton.runtime.driver, "_active", None)
        monkeypatch.setattr(triton.runtime.driver, "_default", None)
        if torch.cuda.is_available():
            pytest.skip("there is a device")
        with pytest.raises(UsageError, match="Triton finds no GPU here: set TRITON_INTERPRET=1"):
            make().choose(*tensors, 1024, grid=grid)

    def test_predicted_choice_is_printed(self, device, tensors, monkeypatch, capsys):
        monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "1")
        kernel = make(budget=0)
        kernel[grid](*tensors, 1024)
        assert "Foretune chose for function copy" in capsys.readouterr().out
        assert kernel.configs_timings == {}


class TestSwitches:
    def test_disable_variable_uses_stock_triton(self, device, tensors, monkeypatch):
        monkeypatch.setenv("FORETUNE_DISABLE", "1")
        kernel = make(configs(64, 128, 256))
        assert call(kernel, device, tensors, 1024) == 3
        assert type(kernel).run is triton.runtime.autotuner.Autotuner.run
        assert kernel.freeze() is kernel

    def test_energy_without_a_meter_minimizes_time_with_a_warning(self, device, tensors):
        kernel = make(configs(64, 256), objective="energy", budget="all")
        with pytest.warns(ForetuneWarning, match="needs a power meter"):
            call(kernel, device, tensors, 1024)
        assert kernel.best_config.kwargs["BLOCK"] == 256

    def test_energy_is_minimized_with_a_meter(self, device, tensors, monkeypatch):
        metered(monkeypatch, device)
        kernel = make(configs(64, 128, 256), objective="energy", budget="all")
        kernel[grid](*tensors, 1024)
        assert kernel.best_config.kwargs["BLOCK"] == 64

    def test_predictor_unusable_is_an_error(self, device, tensors, tmp_path):
        kernel = make(predictor=tmp_path / "nowhere", budget=2)
        with pytest.raises(PredictorError, match="holds no predictor"):
            call(kernel, device, tensors, 1024)
