"""Autotuners that libraries derive, wrap, patch or pickle; equal under both decorators."""

import functools
import pickle

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from triton.runtime.autotuner import Autotuner, Heuristics
from tuned_kernels import best_is, blocks_of, configs

KEY = (64, "torch.float16", "torch.float32")


@pytest.fixture
def tuned(autotune):
    return autotune(configs(128, 256), ["n"])(triton.jit(tuned_kernels.copy))


class TestSubclass:
    @pytest.fixture
    def derived(self, autotuner_class):
        """Return a class in the manner of libraries that keep winners on disk."""

        class Derived(autotuner_class):
            def __init__(self, fn, arg_names, configs, key, reset_to_zero, restore_value, **rest):
                super().__init__(
                    fn,
                    arg_names,
                    configs,
                    key,
                    reset_to_zero,
                    restore_value,
                    rest.get("pre_hook"),
                    rest.get("post_hook"),
                    rest.get("prune_configs_by"),
                    rest.get("warmup"),
                    rest.get("rep"),
                    rest.get("use_cuda_graph", False),
                    rest.get("do_bench"),
                    rest.get("cache_results", False),
                )
                self.runs = []

            def run(self, *args, **kwargs):
                known = bool(self.cache)
                result = super().run(*args, **kwargs)
                self.runs.append((known, self.best_config))
                return result

        return Derived

    def make(self, derived, **rest):
        kernel = triton.jit(tuned_kernels.copy)
        return derived(kernel, kernel.arg_names, configs(128, 256), ["n"], None, None, **rest)

    def test_subclass_runs_its_base(self, derived, driver, tensors):
        tuned = self.make(derived)
        for _ in range(2):
            tuned[(1,)](*tensors, 64)
        best = tuned.configs[1]
        assert tuned.runs == [(False, best), (True, best)]
        assert tuned.cache == {KEY: best}
        assert blocks_of(driver.launches)[-2:] == [256, 256]

    def test_subclass_gets_all_arguments(self, derived, driver, tensors):
        seen = []
        tuned = self.make(
            derived,
            pre_hook=lambda a, reset_only=False: seen.append("pre"),
            post_hook=lambda a, exception: seen.append("post"),
            prune_configs_by={"early_config_prune": lambda configs, named, **k: list(configs)},
            do_bench=lambda call, quantiles: driver.do_bench(call, quantiles),
        )
        tuned[(1,)](*tensors, 64)
        assert seen == ["pre", "post", "pre", "post", "pre"]
        assert tuned.best_config is tuned.configs[1]

    def test_subclass_may_fill_the_cache_in_run(self, autotuner_class, driver, tensors):
        class Filling(autotuner_class):
            def run(self, *args, **kwargs):
                self.cache.setdefault(KEY, self.configs[0])
                return super().run(*args, **kwargs)

        self.make(Filling)[(1,)](*tensors, 64)
        assert blocks_of(driver.launches) == [128]

    def test_subclass_may_replace_pruning(self, autotuner_class, driver, tensors):
        class Pruning(autotuner_class):
            def prune_configs(self, kwargs):
                assert self.nargs["n"] == 64
                return [c for c in super().prune_configs(kwargs) if c.kwargs["BLOCK"] < 512]

        tuned = self.make(Pruning)
        tuned.configs = configs(128, 256, 512, 1024)
        tuned[(1,)](*tensors, 64)
        assert set(blocks_of(driver.launches)) == {128, 256}

    def test_subclass_may_replace_the_benchmark(self, autotuner_class, driver, tensors):
        class Measuring(autotuner_class):
            def _bench(self, *args, config, **meta):
                return [1.0 / config.kwargs["BLOCK"]] * 3

        tuned = self.make(Measuring)
        tuned[(1,)](*tensors, 64)
        assert tuned.best_config.kwargs == {"BLOCK": 256}
        assert tuned.configs_timings == {c: [1 / c.kwargs["BLOCK"]] * 3 for c in tuned.configs}
        assert blocks_of(driver.launches) == [256]


class TestHeuristics:
    def test_below_they_see_the_configuration(self, autotune, driver, tensors):
        seen = []

        def double(args):
            seen.append(args["BLOCK"])
            return args["BLOCK"] * 2

        kernel = triton.jit(tuned_kernels.scale)
        tuned = autotune(configs(128, 256), ["n"])(triton.heuristics({"FACTOR": double})(kernel))
        assert tuned.base_fn is tuned_kernels.scale
        assert isinstance(tuned.fn, Heuristics)
        assert tuned.arg_names == kernel.arg_names
        tuned[(1,)](tensors[0], 64)
        assert set(seen) == {128, 256}
        assert {(s.config["BLOCK"], s.config["FACTOR"]) for s in driver.launches} == {
            (128, 256),
            (256, 512),
        }
        seen.clear()
        tuned[(1,)](tensors[0], 64)
        assert seen == [256]

    def test_below_they_may_depend_on_the_call(self, autotune, driver, tensors):
        even = {"FACTOR": lambda args: args["n"] % 2 == 0}
        tuned = autotune(configs(128, 256), [])(
            triton.heuristics(even)(triton.jit(tuned_kernels.scale))
        )
        for n in (64, 65, 64):
            tuned[(1,)](tensors[0], n)
            assert driver.launches[-1].config["FACTOR"] == (n % 2 == 0)

    def test_above_they_are_arguments_of_the_call(self, autotune, driver, tensors):
        tuned = autotune(configs(128, 256), ["n", "FACTOR"])(triton.jit(tuned_kernels.scale))
        outer = triton.heuristics({"FACTOR": lambda args: args["n"] + 1})(tuned)
        outer[(1,)](tensors[0], 64)
        outer[(1,)](tensors[0], 64)
        assert list(tuned.cache) == [(64, 65, "torch.float16")]
        assert driver.launches[-1].config["FACTOR"] == 65

    def test_options_may_come_from_them(self, autotune, driver, tensors):
        chosen = {"m": lambda args: 7}
        tuned = autotune(configs(128, 256), ["n"])(
            triton.heuristics(chosen)(triton.jit(tuned_kernels.copy))
        )
        tuned[(1,)](*tensors, 64)
        assert driver.launches[-1].arguments["m"] == 7


class TestPatching:
    def test_a_patched_run_is_run(self, autotune, driver, tensors, monkeypatch):
        """The way in which servers switch tuning off: the first configuration, always."""

        def first(self, *args, **kwargs):
            self.best_config = self.configs[0]
            return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())

        with monkeypatch.context() as patch:
            patch.setattr(Autotuner, "run", first)
            tuned = autotune(configs(128, 256), ["n"])(triton.jit(tuned_kernels.copy))
            tuned[(1,)](*tensors, 64)
            assert blocks_of(driver.launches) == [128]
        tuned[(1,)](*tensors, 64)
        assert tuned.best_config.kwargs == {"BLOCK": 256}

    def test_a_run_patched_after_tuning_is_run(self, tuned, driver, tensors, monkeypatch):
        for _ in range(2):
            tuned[(1,)](*tensors, 64)
        driver.launches.clear()
        before = Autotuner.run

        @functools.wraps(before)
        def first(self, *args, **kwargs):
            everything = self.configs
            self.configs = self.configs[:1]
            try:
                return before(self, *args, **kwargs)
            finally:
                self.configs = everything

        monkeypatch.setattr(Autotuner, "run", first)
        tuned[(1,)](*tensors, 64)
        assert blocks_of(driver.launches) == [128]

    def test_a_run_of_the_instance_is_run(self, tuned, driver, tensors):
        calls = []
        before = tuned.run
        tuned.run = lambda *args, **kwargs: (calls.append(len(args)), before(*args, **kwargs))[1]
        tuned[(1,)](*tensors, 64)
        assert calls == [3]
        assert blocks_of(driver.launches)[-1] == 256

    def test_a_patched_bench_measures(self, tuned, driver, tensors, monkeypatch):
        monkeypatch.setattr(
            Autotuner, "_bench", lambda self, *args, config, **meta: [config.kwargs["BLOCK"]] * 3
        )
        tuned[(1,)](*tensors, 64)
        assert blocks_of(driver.launches) == [128]

    def test_a_patched_init_is_run(self, autotune, monkeypatch):
        before = Autotuner.__init__

        def cut(self, fn, arg_names, configs, *args, **kwargs):
            before(self, fn, arg_names, configs[:1], *args, **kwargs)

        monkeypatch.setattr(Autotuner, "__init__", cut)
        tuned = autotune(configs(128, 256), ["n"])(triton.jit(tuned_kernels.copy))
        assert blocks_of(tuned.configs) == [128]


def test_the_cache_can_be_pickled(tuned, driver, tensors):
    tuned[(1,)](*tensors, 64)
    restored = pickle.loads(pickle.dumps(tuned.cache))
    assert type(restored) is type(tuned.cache)
    assert restored == {KEY: triton.Config({"BLOCK": 256})}
    tuned.cache = restored
    driver.times = best_is(128)
    driver.launches.clear()
    tuned[(1,)](*tensors, 64)
    assert blocks_of(driver.launches) == [256]


def test_timings_can_be_pickled(tuned, driver, tensors):
    tuned[(1,)](*tensors, 64)
    assert pickle.loads(pickle.dumps(tuned.configs_timings)) == tuned.configs_timings


def test_wrappers_find_the_function(tuned):
    found = tuned
    while not isinstance(found, triton.JITFunction):
        found = found.fn
    assert found.fn is tuned.base_fn is tuned_kernels.copy


def test_a_wrapper_reads_the_winner_right_after_the_call(tuned, driver, tensors):
    """As libraries do that launch the compiled kernel themselves from then on."""
    compiled = tuned[(1,)](*tensors, 64)
    constants = {**tuned.best_config.kwargs, "num_warps": tuned.best_config.num_warps}
    assert constants == {"BLOCK": 256, "num_warps": 4}
    assert compiled.metadata.num_warps == constants["num_warps"]


def test_one_decorator_may_be_used_for_two_kernels(autotune, driver, tensors):
    decorator = autotune(configs(128, 256), ["n"])
    one, two = (decorator(triton.jit(tuned_kernels.copy)) for _ in range(2))
    one[(1,)](*tensors, 64)
    assert two.cache == {}
    assert one.configs is two.configs
