"""The configuration that runs: keys, cache, ties, failures; equal under both decorators."""

import gc
import math
import weakref

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.errors import OutOfResources, PTXASError
from tuned_kernels import FAST, SLOW, best_is, blocks_of, by_size, configs, failing


@pytest.fixture
def tuned(autotune):
    return autotune(configs(128, 256, 512), ["n"])(triton.jit(tuned_kernels.copy))


def grid(meta):
    return (triton.cdiv(64, meta["BLOCK"]),)


def test_each_configuration_is_measured_and_the_fastest_launched(tuned, driver, tensors):
    returned = tuned[grid](*tensors, 64)
    assert set(blocks_of(driver.launches)) == {128, 256, 512}
    assert driver.launches[-1].config["BLOCK"] == 256
    assert driver.launches[-1].grid == (1, 1, 1)
    assert tuned.best_config is tuned.configs[1]
    assert returned.metadata.num_warps == 4


def test_timings_are_kept_per_configuration(tuned, driver, tensors):
    tuned[grid](*tensors, 64)
    assert list(tuned.configs_timings) == tuned.configs
    assert [list(t) for t in tuned.configs_timings.values()] == [
        [SLOW] * 3,
        [FAST] * 3,
        [SLOW] * 3,
    ]
    assert tuned.bench_time >= 0


def test_a_known_problem_is_launched_once(tuned, driver, tensors):
    tuned[grid](*tensors, 64)
    driver.launches.clear()
    for _ in range(3):
        tuned[grid](*tensors, 64)
    assert blocks_of(driver.launches) == [256, 256, 256]


def test_best_config_is_set_after_every_call(tuned, driver, tensors):
    driver.times = by_size
    found = []
    for n in (64, 4096, 64, 4096):
        tuned[grid](*tensors, n)
        found.append((tuned.best_config.kwargs["BLOCK"], driver.launches[-1].config["BLOCK"]))
    assert found == [(128, 128), (256, 256), (128, 128), (256, 256)]


def test_best_config_is_set_before_the_launch(tuned, driver, tensors):
    seen = []

    def times(launch):
        seen.append(getattr(tuned, "best_config", None))
        return by_size(launch)

    driver.times = times
    tuned[grid](*tensors, 64)
    tuned[grid](*tensors, 4096)
    seen.clear()
    tuned[grid](*tensors, 64)
    tuned[grid](*tensors, 4096)
    assert seen == [tuned.configs[0], tuned.configs[1]]


def test_types_are_part_of_the_problem(tuned, driver, tensors):
    x, y = tensors
    tuned[grid](x, y, 64)
    driver.times = best_is(512)
    tuned[grid](x.float(), y, 64)
    assert tuned.best_config.kwargs["BLOCK"] == 512
    tuned[grid](x, y, 64)
    assert tuned.best_config.kwargs["BLOCK"] == 256


HALF = "torch.float16"
SINGLE = "torch.float32"


@pytest.mark.parametrize(
    ("key", "call", "expected"),
    [
        (["n"], lambda x, y: ((x, y, 64), {}), (64, HALF, SINGLE)),
        (["n"], lambda x, y: ((x, y), {"n": 64}), (64, HALF, SINGLE)),
        (["n"], lambda x, y: ((), {"n": 64, "y": y, "x": x}), (64, SINGLE, HALF)),
        (["n"], lambda x, y: ((x,), {"n": 64, "y": y}), (64, HALF, SINGLE)),
        (["m", "n"], lambda x, y: ((x, y, 64, 5), {}), (5, 64, HALF, SINGLE)),
        (["m", "n"], lambda x, y: ((x, y, 64), {"m": 5}), (5, 64, HALF, SINGLE)),
        (["m", "n"], lambda x, y: ((x, y, 64), {}), (64, HALF, SINGLE)),  # m is at its default
        (["m"], lambda x, y: ((x, y, 64), {}), (HALF, SINGLE)),
        ([], lambda x, y: ((x, y, 64), {}), (HALF, SINGLE)),
        (["n", "n"], lambda x, y: ((x, y, 64), {}), (64, 64, HALF, SINGLE)),
        (["n"], lambda x, y: ((x, None, 64), {}), (64, HALF)),
        (["n"], lambda x, y: ((x, x.to(torch.int8), True), {}), (True, HALF, "torch.int8")),
        (["n", "m"], lambda x, y: ((x, y, 64, 0.5), {}), (64, 0.5, HALF, SINGLE)),
    ],
)
def test_keys_have_tritons_format(autotune, driver, tensors, key, call, expected):
    tuned = autotune(configs(128, 256), key)(triton.jit(tuned_kernels.copy))
    args, kwargs = call(*tensors)
    tuned[grid](*args, **kwargs)
    assert list(tuned.cache) == [expected]
    assert list(map(type, next(iter(tuned.cache)))) == list(map(type, expected))
    assert tuned.cache[expected] is tuned.best_config


def test_a_constant_of_the_call_may_be_a_key(autotune, driver, tensors):
    tuned = autotune(configs(128, 256), ["FACTOR"])(triton.jit(tuned_kernels.scale))
    driver.times = lambda launch: abs(launch.config["BLOCK"] - launch.config["FACTOR"])
    tuned[grid](tensors[0], 64, FACTOR=128)
    tuned[grid](tensors[0], 64, FACTOR=256)
    assert {key: config.kwargs["BLOCK"] for key, config in tuned.cache.items()} == {
        (128, HALF): 128,
        (256, HALF): 256,
    }


class TestCache:
    """Others read it, fill it, clear it and put another in its place."""

    KEY = (64, HALF, SINGLE)

    def test_cleared_it_is_filled_anew(self, tuned, driver, tensors):
        tuned[grid](*tensors, 64)
        tuned.cache.clear()
        driver.times = best_is(512)
        tuned[grid](*tensors, 64)
        assert tuned.best_config.kwargs["BLOCK"] == 512

    def test_filled_before_nothing_is_measured(self, tuned, driver, tensors):
        tuned.cache[self.KEY] = tuned.configs[2]
        tuned[grid](*tensors, 64)
        assert blocks_of(driver.launches) == [512]
        assert tuned.best_config is tuned.configs[2]

    def test_filled_with_a_configuration_of_somebody_elses(self, tuned, driver, tensors):
        tuned.cache[self.KEY] = triton.Config({"BLOCK": 1024}, num_warps=8)
        tuned[grid](*tensors, 64)
        (launch,) = driver.launches
        assert (launch.config["BLOCK"], launch.config["num_warps"]) == (1024, 8)

    def test_an_entry_changed_after_tuning_counts(self, tuned, driver, tensors):
        for _ in range(2):
            tuned[grid](*tensors, 64)
        tuned.cache[self.KEY] = tuned.configs[0]
        driver.launches.clear()
        tuned[grid](*tensors, 64)
        assert blocks_of(driver.launches) == [128]
        assert tuned.best_config is tuned.configs[0]

    @pytest.mark.parametrize(
        "forget",
        [
            lambda tuned, key: tuned.cache.pop(key),
            lambda tuned, key: tuned.cache.__delitem__(key),
            lambda tuned, key: tuned.cache.popitem(),
            lambda tuned, key: setattr(tuned, "cache", {}),
        ],
        ids=["pop", "del", "popitem", "assigned"],
    )
    def test_an_entry_removed_is_measured_again(self, tuned, driver, tensors, forget):
        for _ in range(2):
            tuned[grid](*tensors, 64)
        forget(tuned, self.KEY)
        driver.times = best_is(512)
        tuned[grid](*tensors, 64)
        assert tuned.best_config.kwargs["BLOCK"] == 512

    @pytest.mark.parametrize(
        "fill",
        [
            lambda tuned, entry: tuned.cache.update(entry),
            lambda tuned, entry: setattr(tuned, "cache", entry),
            lambda tuned, entry: [tuned.cache.setdefault(*item) for item in entry.items()],
            lambda tuned, entry: setattr(tuned, "cache", tuned.cache | entry),
            lambda tuned, entry: tuned.cache.__ior__(entry),
        ],
        ids=["update", "assigned", "setdefault", "merged", "merged in place"],
    )
    def test_it_is_filled_in_every_way(self, tuned, driver, tensors, fill):
        fill(tuned, {self.KEY: tuned.configs[2]})
        tuned[grid](*tensors, 64)
        tuned[grid](*tensors, 64)
        assert blocks_of(driver.launches) == [512, 512]

    def test_a_dictionary_of_the_users_is_written_to(self, tuned, driver, tensors):
        mine = {}
        tuned.cache = mine
        tuned[grid](*tensors, 64)
        assert mine == {self.KEY: tuned.configs[1]}

    def test_cache_of_another_kernel_with_the_same_key_is_separate(self, autotune, driver, tensors):
        one, other = (
            autotune(configs(128, 256), ["n"])(triton.jit(tuned_kernels.copy)) for _ in range(2)
        )
        one[grid](*tensors, 64)
        assert list(one.cache) == [self.KEY]
        assert other.cache == {}


class TestConfigs:
    """Others take configurations away, add some, or put another list in place."""

    def test_a_single_one_is_launched_without_key_or_cache(self, autotune, driver, tensors):
        tuned = autotune(configs(512), ["n"])(triton.jit(tuned_kernels.copy))
        tuned[grid](*tensors, 64)
        assert blocks_of(driver.launches) == [512]
        assert tuned.cache == {}
        assert tuned.best_config is tuned.configs[0]
        assert not hasattr(tuned, "configs_timings")

    @pytest.mark.parametrize(
        "reduce",
        [
            lambda tuned: setattr(tuned, "configs", [tuned.configs[2]]),
            lambda tuned: tuned.configs.__setitem__(slice(None), [tuned.configs[2]]),
            lambda tuned: tuned.configs.__delitem__(slice(2)),
        ],
        ids=["assigned", "in place", "removed"],
    )
    @pytest.mark.parametrize("calls_before", [0, 2])
    def test_reduced_to_one_it_is_used(self, tuned, driver, tensors, reduce, calls_before):
        for _ in range(calls_before):
            tuned[grid](*tensors, 64)
        driver.launches.clear()
        reduce(tuned)
        tuned[grid](*tensors, 64)
        assert blocks_of(driver.launches) == [512]
        assert tuned.best_config.kwargs["BLOCK"] == 512

    def test_a_new_list_counts_for_new_problems(self, tuned, driver, tensors):
        tuned[grid](*tensors, 64)
        tuned.configs = configs(16, 32)
        driver.times = best_is(16)
        tuned[grid](*tensors, 64)
        assert tuned.best_config.kwargs["BLOCK"] == 256
        driver.launches.clear()
        tuned[grid](*tensors, 65)
        assert set(blocks_of(driver.launches)) == {16, 32}
        assert tuned.best_config.kwargs["BLOCK"] == 16

    def test_one_more_is_measured_too(self, tuned, driver, tensors):
        tuned.configs.append(triton.Config({"BLOCK": 16}))
        driver.times = best_is(16)
        tuned[grid](*tensors, 64)
        assert list(tuned.configs_timings) == tuned.configs
        assert tuned.best_config is tuned.configs[3]

    def test_all_options_reach_the_kernel(self, autotune, driver, tensors):
        only = triton.Config({"BLOCK": 32}, num_warps=2, num_stages=5, maxnreg=64)
        tuned = autotune([only], ["n"])(triton.jit(tuned_kernels.copy))
        tuned[grid](*tensors, 64)
        assert driver.launches[0].config == {
            "BLOCK": 32,
            "num_warps": 2,
            "num_stages": 5,
            "num_ctas": 1,
            "maxnreg": 64,
        }


class TestBenchmarker:
    """Whoever gives one decides what a time is."""

    @staticmethod
    def bench(answers, calls):
        remaining = iter(answers)

        def do_bench(*args, **kwargs):
            calls.append((len(args), kwargs))
            args[0]()
            return next(remaining)

        return do_bench

    def tuned(self, autotune, answers, calls):
        bench = self.bench(answers, calls)
        kernel = triton.jit(tuned_kernels.copy)
        return autotune(configs(128, 256, 512), ["n"], do_bench=bench)(kernel)

    def test_it_is_asked_for_quantiles_by_keyword_once_each(self, autotune, driver, tensors):
        calls = []
        tuned = self.tuned(autotune, [[3.0] * 3, [2.0] * 3, [1.0] * 3], calls)
        tuned[grid](*tensors, 64)
        assert calls == [(1, {"quantiles": (0.5, 0.2, 0.8)})] * 3
        assert blocks_of(driver.launches) == [128, 256, 512, 512]
        assert tuned.configs_timings[tuned.configs[1]] == [2.0] * 3

    @pytest.mark.parametrize(
        ("answers", "winner"),
        [
            ([(2.0, 1.0, 9.0), (1.0, 0.9, 9.0), (3.0, 0.1, 3.0)], 256),
            ([(1.0, 0.9, 9.0), (1.0, 0.8, 9.0), (1.0, 0.95, 1.0)], 256),  # a tie: the 20 % decide
            ([(1.0, 0.9, 1.0), (1.0, 0.9, 1.0), (1.0, 0.9, 1.0)], 128),
            ([3.0, 2.0, 1.0], 512),  # not every benchmarker knows quantiles
            ([[math.inf] * 3, [2.0] * 3, [math.inf] * 3], 256),
        ],
    )
    def test_its_answers_are_compared_as_they_are(self, autotune, driver, tensors, answers, winner):
        tuned = self.tuned(autotune, answers, [])
        tuned[grid](*tensors, 64)
        assert tuned.best_config.kwargs["BLOCK"] == winner
        assert list(tuned.configs_timings.values()) == answers

    def test_one_assigned_later_is_used(self, tuned, driver, tensors):
        tuned.do_bench = self.bench([[3.0] * 3, [2.0] * 3, [1.0] * 3], [])
        tuned[grid](*tensors, 64)
        assert tuned.best_config.kwargs["BLOCK"] == 512

    def test_benchmarker_default_is_the_drivers(self, tuned, driver, tensors):
        tuned[grid](*tensors, 64)
        assert tuned.do_bench == driver.do_bench


class TestFailures:
    @pytest.mark.parametrize(
        "error",
        [
            OutOfResources(300_000, 200_000, "shared memory"),
            PTXASError("scripted"),
            CompileTimeAssertionFailure(None, None, "scripted"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_what_does_not_compile_or_fit_is_infinitely_slow(self, tuned, driver, tensors, error):
        driver.times = failing(128, best=512, error=error)
        tuned[grid](*tensors, 64)
        assert tuned.best_config.kwargs["BLOCK"] == 512
        assert list(map(list, tuned.configs_timings.values())) == [
            [math.inf] * 3,
            [SLOW] * 3,
            [FAST] * 3,
        ]

    def test_if_all_fail_the_error_comes_out(self, tuned, driver, tensors):
        driver.times = failing(128, 256, 512, best=None)
        with pytest.raises(OutOfResources, match="shared memory"):
            tuned[grid](*tensors, 64)

    def test_after_a_failure_of_all_clearing_helps(self, tuned, driver, tensors):
        driver.times = failing(128, 256, 512, best=None)
        with pytest.raises(OutOfResources):
            tuned[grid](*tensors, 64)
        tuned.cache.clear()
        driver.times = best_is(256)
        tuned[grid](*tensors, 64)
        assert tuned.best_config.kwargs["BLOCK"] == 256

    def test_an_error_of_the_chosen_one_comes_out_of_the_call(self, tuned, driver, tensors):
        tuned[grid](*tensors, 64)
        driver.times = failing(256, best=128, error=RuntimeError("scripted"))
        with pytest.raises(RuntimeError, match="scripted"):
            tuned[grid](*tensors, 64)


class TestCalls:
    def test_a_constant_that_is_tuned_cannot_be_given_too(self, tuned, driver, tensors):
        with pytest.raises(ValueError, match=r"Conflicting meta-parameters: BLOCK\. Make sure"):
            tuned[grid](*tensors, 64, BLOCK=128)

    def test_nor_can_the_constant_of_a_single_configuration(self, autotune, driver, tensors):
        tuned = autotune(configs(128), ["n"])(triton.jit(tuned_kernels.copy))
        with pytest.raises(TypeError, match="multiple values"):
            tuned[grid](*tensors, 64, BLOCK=128)

    def test_an_option_that_is_tuned_cannot_be_given_too(self, tuned, driver, tensors):
        with pytest.raises(TypeError, match="multiple values"):
            tuned[grid](*tensors, 64, num_warps=8)

    def test_an_unknown_argument_is_the_kernels_to_refuse(self, tuned, driver, tensors):
        with pytest.raises((KeyError, TypeError), match="nonsense"):
            tuned[grid](*tensors, 64, nonsense=1)

    def test_a_missing_argument_is_the_kernels_to_miss(self, tuned, driver, tensors):
        with pytest.raises(TypeError, match="'n'"):
            tuned[grid](*tensors)

    def test_the_arguments_are_not_kept(self, tuned, driver):
        for _ in range(2):
            x = torch.ones(64)
            y = torch.ones(64)
            gone = weakref.ref(x)
            tuned[grid](x, y, 64)
            assert tuned.nargs is None
            del x
            if gone() is not None:  # only a cycle is left, if anything
                gc.collect()
            assert gone() is None

    def test_run_is_what_brackets_call(self, tuned, driver, tensors):
        tuned.run(*tensors, 64, grid=grid, warmup=False)
        assert tuned.best_config.kwargs["BLOCK"] == 256
        assert driver.launches[-1].config["BLOCK"] == 256

    def test_warmup_compiles_every_configuration_and_launches_none(self, tuned, driver, tensors):
        compiled = tuned.warmup(*tensors, 64, grid=(1,))
        assert len(compiled) == 3
        assert [config["BLOCK"] for _, config in driver.compilations] == [128, 256, 512]
        assert driver.launches == []
        assert tuned.nargs is None
        assert tuned.cache == {}

    def test_types_instead_of_tensors_warm_up(self, tuned, driver):
        assert len(tuned.warmup(torch.float16, torch.float32, 64, grid=(1,))) == 3

    def test_the_grid_is_computed_from_the_configuration(self, tuned, driver, tensors):
        asked = []

        def grid(meta):
            asked.append((meta["BLOCK"], meta["n"]))
            return (1,)

        tuned[grid](*tensors, 64)
        asked.clear()
        tuned[grid](*tensors, 64)
        assert asked == [(256, 64)]
